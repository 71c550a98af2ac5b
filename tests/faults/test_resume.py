"""A run that goes on: with nothing mixed, and with nothing done twice."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from profiler.cli import answer
from profiler.core.case import Choice
from profiler.engines import local
from profiler.engines.local import Local
from profiler.runs import find, store
from profiler.runs.store import Writer
from profiler.workflows import owed_trials
from tests.conftest import Lent
from tests.program import next_words

WORDS = ("--strategies", "none,all", "--device", "cpu", "--rounds", "1", "--samples", "1", "--warmup", "0")
MINE = """
def build():
    from torch import nn, randn
    return nn.Sequential(nn.Linear(4, WIDTH)), randn(2, 4), lambda output: output.sum()
"""


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


def model_of(folder: Path) -> str:
    return str(store.load(folder).manifest.plan[0].case.model)


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


def test_fault_61_other_words_and_another_torch_are_listed_at_once(half: Path, capsys: Any):
    pretend(half, torch="1.13.1")
    (half.parent / "sweep.toml").write_text('strategies = "none,sqrt"\nbatch_size = "8"\nrounds = 2\n')

    words = ["--model", "mlp", "--config", "sweep.toml", "--samples", "1", "--warmup", "0", "--device", "cpu"]
    code = answer(["run", "--resume", "run", *words])

    message, _ = complaint(capsys.readouterr().err)
    assert code == 2
    assert "strategies none,all -> none,sqrt; rounds 1 -> 2; batch size - -> 8; torch 1.13.1 -> " in message
    assert records(half) == [("none", 1)]


@pytest.fixture
def mine(here: Path, shared: None, capsys: Any) -> Path:
    """The same of a model in a file of the user's, which was changed since."""
    (here / "mine.py").write_text(MINE.replace("WIDTH", "3"))
    assert answer(["run", "--model", f"{here / 'mine.py'}:build", *WORDS, "-o", "run"]) == 0
    tear(here / "run")
    capsys.readouterr()
    (here / "mine.py").write_text(MINE.replace("WIDTH", "400"))
    return here / "run"


@pytest.mark.slow
def test_fault_61_a_model_file_that_changed_is_listed(mine: Path, capsys: Any):
    code = answer(["run", "--resume", "run", "--model", model_of(mine)])

    message, _ = complaint(capsys.readouterr().err)
    assert code == 2
    assert re.search(r"mixed: \S+/mine\.py was another file$", message)
    assert records(mine) == [("none", 1)]


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


def test_fault_61_what_crashed_is_said_before_and_after(half: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    (done,) = store.load(half).records
    lost = msgspec.structs.replace(done, case=msgspec.structs.replace(done.case, strategy=Choice("all")))
    writer = Writer(half)
    writer.append(msgspec.structs.replace(lost, outcome="crashed"))
    writer.close()
    monkeypatch.setattr(owed_trials, "run_owed", lambda *words, **more: iter(()))

    code = answer(["run", "--resume", "run"])

    err = capsys.readouterr().err
    assert code == 1
    assert "note: 1 trial measured again: crashed, timed out, or had a baseline that did" in err
    assert "note: 1 trial crashed or timed out; gcprof run --resume run measures such trials again" in err


@pytest.mark.slow
def test_fault_61_a_run_of_ones_own_model_goes_on_by_the_command_that_was_named(
    here: Path, shared: None, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    (here / "my model.py").write_text(MINE.replace("WIDTH", "3"))
    with monkeypatch.context() as patch:
        patch.setattr(owed_trials, "run_owed", lambda *words, **more: iter(()))  # interrupted at once
        answer(["run", "--model", f"{here / 'my model.py'}:build", *WORDS, "-o", "run"])
    named = next_words(capsys.readouterr().err)

    refused = answer(named[:3])
    told = complaint(capsys.readouterr().err)[1]
    code = answer(named)

    assert named == ["run", "--resume", "run", "--model", f"{here / 'my model.py'}:build"]
    assert (refused, code) == (2, 0)
    assert told == f"hint: if this is your own code: {shlex.join(['gcprof', *named])}"
    assert records(here / "run") == [("none", 1), ("all", 1)]
    assert f"is the code in {(here / 'my model.py').resolve()}" in capsys.readouterr().err


# 62: nothing left


@pytest.mark.slow
def test_fault_62_a_finished_run_is_shown_and_nothing_is_done(half: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    assert answer(["run", "--resume", "run"]) == 0
    first, before = capsys.readouterr(), (half / "trials.jsonl").read_bytes()
    (half / "derived" / ".table.csv.0a1b2c.new").write_text("half")
    monkeypatch.delattr(local, "Server")  # nothing is started

    code = answer(["run", "--resume", "run"])

    out, err = capsys.readouterr()
    assert code == 0
    assert out == first.out
    assert err.startswith("there is nothing left to do")
    assert (half / "trials.jsonl").read_bytes() == before
    assert not list(half.rglob(".*"))
