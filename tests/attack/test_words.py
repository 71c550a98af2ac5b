"""Every field of a case x every kind of word x every command that opens a folder: nothing of it is resolved."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from profiler.cli import answer
from profiler.core import safe_files
from profiler.request import consent
from profiler.runs import store
from tests.attack import hostile
from tests.attack.commands import READING, RUNNING, combinations, limited
from tests.attack.watch import PROCESSES, SOCKETS, watched

KEYS = ("model", "strategies", "optimizer", "parallel", "blocks", "data", "precision", "verify", "device")


@pytest.fixture(autouse=True)
def _limit() -> Iterator[None]:
    with limited():
        yield


@pytest.fixture
def planted(here: Path, no_server: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in where all that is hostile leads somewhere."""
    hostile.plant(here)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # a disk takes longer than all else here
    monkeypatch.syspath_prepend(here)
    monkeypatch.setattr(importlib.util, "find_spec", _asked_of(importlib.util.find_spec))
    return here


def _asked_of(find_spec: Any) -> Any:
    """The same, which fails for a name that only a file can have said."""

    def find(name: str, package: str | None = None) -> Any:
        assert "evil" not in name, f"find_spec({name!r})"
        return find_spec(name, package)

    return find


def refused(words: tuple[str, ...], here: Path, capsys: Any) -> tuple[int, str, list[tuple[str, str]]]:
    """What a command ends with and says, and what it did of all that is watched."""
    capsys.readouterr()
    with watched() as seen:
        code = answer(list(words))
    out, err = capsys.readouterr()
    outside = str(here / "outside")
    harm = [
        (event, name)
        for event, name in seen
        if event in (*PROCESSES, *SOCKETS) or "evil" in name or name.startswith(outside) or name == "mlp"
    ]
    assert hostile.SECRET not in out + err
    assert not (here / "sprung").exists()
    return code, out + err, harm


@pytest.mark.parametrize(("field", "kind", "command"), combinations(hostile.FIELDS, hostile.WORDS, READING))
def test_a_word_of_a_folder_is_shown_and_nothing_more(field: str, kind: str, command: str, planted: Path, capsys: Any):
    for name in ("base", "base2"):
        hostile.folder(planted / name, **{field: hostile.word(kind, planted)})

    code, told, harm = refused(READING[command], planted, capsys)

    assert harm == []
    assert code in (0, 4), told  # 4: merging or comparing refuses what it cannot compare


@pytest.mark.parametrize(("field", "kind", "command"), combinations(hostile.FIELDS, hostile.WORDS, RUNNING))
def test_a_word_of_a_folder_is_refused_where_it_would_be_run(
    field: str, kind: str, command: str, planted: Path, capsys: Any
):
    hostile.folder(planted / "base", **{field: hostile.word(kind, planted)})

    code, told, harm = refused(RUNNING[command], planted, capsys)

    assert harm == []
    assert code == 2, told
    assert "gcprof does not run code just because a run folder names it" in told or "is not a row of this run" in told
    assert not (planted / "new").exists()


@pytest.mark.parametrize(("key", "kind"), combinations(KEYS, hostile.WORDS))
def test_a_word_of_a_sweep_file_is_refused(key: str, kind: str, planted: Path, capsys: Any):
    (planted / "sweep.toml").write_text(f'{key} = "{hostile.word(kind, planted)}"\n')

    code, told, harm = refused(("run", "--config", "sweep.toml", "--dry-run"), planted, capsys)

    assert harm == []
    assert code == 2, told


@pytest.mark.parametrize("kind", ["plan", "file", "file as an option", "inner module"])
def test_a_refusal_is_the_same_whether_a_file_is_there_or_not(kind: str, planted: Path, capsys: Any):
    there, gone = hostile.word(kind, planted), hostile.word(kind, planted).replace("/outside/", "/nowhere/")
    hostile.folder(planted / "base", model=there, strategy=there)
    hostile.folder(planted / "gone", model=gone, strategy=gone)

    for words in RUNNING.values():
        code, told, _ = refused(words, planted, capsys)
        again = tuple("gone" if word == "base" else word for word in words)
        assert (code, told) == _named(refused(again, planted, capsys)), words


def _named(answered: tuple[int, str, list[tuple[str, str]]]) -> tuple[int, str]:
    code, told, _ = answered
    return code, told.replace("/nowhere/", "/outside/").replace("--resume gone", "--resume base").replace(
        "explain gone", "explain base"
    )


@pytest.mark.parametrize("field", ["model", "strategy"])
def test_twin_without_the_gate_the_code_would_be_looked_for(
    field: str, planted: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    monkeypatch.setattr(consent, "unnamed", lambda *cases, **named: {})
    kind = {"model": "file", "strategy": "plan"}[field]
    hostile.folder(planted / "base", **{field: hostile.word(kind, planted)})

    answer(["run", "--resume", "base"])

    assert "a server was started" in capsys.readouterr().err


def test_twin_what_is_opened_would_be_seen(planted: Path):
    with watched() as seen:
        (planted / "outside" / "secret.json").read_text()

    assert ("open", str(planted / "outside" / "secret.json")) in seen


def test_a_plan_of_the_folder_itself_needs_no_naming_unless_it_leads_elsewhere(planted: Path):
    plan = planted / "base" / "plans" / "one.json"
    hostile.folder(planted / "base", strategy="plan:file=base/plans/one.json")
    plan.parent.mkdir()
    case = store.load(planted / "base").manifest.plan[0].case

    def unnamed() -> dict[str, list[str]]:
        return consent.unnamed([case], folder=planted / "base", named={})

    assert "strategy" in unnamed()
    plan.symlink_to(planted / "outside" / "secret.json")
    assert "strategy" in unnamed()
    plan.unlink()
    plan.write_text("{}")
    assert unnamed() == {}
    assert safe_files.is_regular(plan)
