"""A run that goes on: with nothing mixed, and with nothing done twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from profiler.cli import answer
from profiler.engines import local
from profiler.engines.local import Local
from profiler.runs import find, store
from profiler.runs.store import Writer
from tests.conftest import Lent

WORDS = ("--strategies", "none,all", "--device", "cpu", "--rounds", "1", "--samples", "1", "--warmup", "0")


def records(folder: Path) -> list[tuple[str, int]]:
    return [(str(record.case.strategy), record.round) for record in store.load(folder).records]


def texts(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def tear(folder: Path) -> None:
    """The last record is not there any more."""
    path = folder / "trials.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


@pytest.fixture(scope="module")
def whole(engine: Local, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two trials."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "Server", lambda visible, rehearses=False, **others: Lent(engine._servers[rehearses]))
        assert answer(["run", "--model", "mlp", *WORDS, "-o", str(folder)]) == 0
    return folder


@pytest.fixture
def half(whole: Path, here: Path, shared: None, capsys: Any) -> Path:
    """The same with one of its trials done."""
    shutil.copytree(whole, here / "run")
    tear(here / "run")
    capsys.readouterr()
    return here / "run"


def pretend(folder: Path, **fields: Any) -> None:
    """The run began with another environment."""
    path = folder / "manifest.json"
    document = msgspec.json.decode(path.read_bytes())
    document["environment"].update(fields)
    path.write_bytes(msgspec.json.encode(document))


def complaint(err: str) -> tuple[str, str]:
    """What is wrong, and the hint."""
    (message, hint) = (line for line in err.splitlines() if line.startswith(("gcprof: ", "hint: ")))
    return message, hint


@pytest.mark.nightly
def test_fault_39_a_run_in_progress_is_not_resumed(half: Path, capsys: Any):
    writer = Writer(half)
    before = (half / "trials.jsonl").read_bytes()

    code = answer(["run", "--resume", "run"])

    writer.close()
    assert code == 2
    assert "another gcprof is writing to run" in capsys.readouterr().err
    assert (half / "trials.jsonl").read_bytes() == before


# 61: other words, code, versions, device


@pytest.mark.slow
def test_fault_61_every_version_and_device_that_changed_is_listed(half: Path, capsys: Any):
    others = {"gcprof": "0.0.9", "python": "3.10.1", "torch": "1.13.1", "device_name": "an abacus", "num_threads": 77}
    pretend(half, **others)
    before = texts(half)

    code = answer(["run", "--resume", "run"])

    message, hint = complaint(capsys.readouterr().err)
    assert code == 2
    assert [name for name in others if f"{name} {others[name]} -> " not in message] == []
    assert hint == "hint: gcprof run --resume run --new-run measures it anew, in a folder of its own"
    assert texts(half) == before


@pytest.mark.slow
def test_fault_61_a_new_run_has_the_same_plan_in_a_folder_of_its_own(half: Path, capsys: Any):
    pretend(half, torch="1.13.1")
    before = texts(half)

    code = answer(["run", "--resume", "run", "--new-run"])

    (folder,) = find.runs(half.parent / "results")
    old, new = store.load(half), store.load(folder)
    assert code == 0
    assert texts(half) == before
    assert (new.manifest.plan, new.manifest.command) == (old.manifest.plan, old.manifest.command)
    assert new.manifest.words == old.manifest.words
    assert new.manifest.words["strategies"] == "none,all"
    assert records(folder) == [("none", 1), ("all", 1)]


# 62: nothing left
