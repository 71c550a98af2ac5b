"""Old schemas are read, and rewritten; a schema 0 is planted, since there is no old one yet."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from profiler.cli import answer
from profiler.core import safe_files
from profiler.core.migration import STEPS, Step, lifted
from profiler.runs import store
from tests import examples, make

RECORDS = [make.record("none"), make.record("segments:k=2")]


def old_manifest(document: dict) -> dict:
    return {("command" if key == "typed" else key): value for key, value in document.items()}


def old_record(document: dict) -> dict:
    return {("outcome" if key == "result" else key): value for key, value in document.items()}


@pytest.fixture
def old(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder as schema 0 would have written it: other names of two fields. Its second record is of schema 1."""
    monkeypatch.setitem(STEPS, 0, Step(manifest=old_manifest, record=old_record))
    folder = examples.run(here / "old", RECORDS).folder
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 0').replace('"command"', '"typed"'))
    path = folder / "trials.jsonl"
    first, second, _ = path.read_text().split("\n")
    first = first.replace('"schema":1', '"schema":0', 1).replace('"outcome"', '"result"')
    path.write_text(f"{first}\n{second}\n")
    (folder / "logs" / "one.log").write_text("printed")
    return folder


def test_steps_lead_from_one_schema_to_the_next(monkeypatch):
    monkeypatch.setitem(STEPS, -1, Step(manifest=dict, record=lambda one: {**one, "a": 1}))
    monkeypatch.setitem(STEPS, 0, Step(manifest=dict, record=lambda one: {**one, "b": one["a"] + 1}))

    assert lifted({"schema": -1}, "record") == {"schema": 1, "a": 1, "b": 2}
    assert lifted({"schema": -1}, "manifest") == {"schema": 1}
    assert lifted({"schema": 1, "c": 3}, "record") == {"schema": 1, "c": 3}


def test_migrating_in_place_rewrites_what_is_old_and_nothing_else(old, capsys):
    second = (old / "trials.jsonl").read_bytes().split(b"\n")[1]

    assert answer(["migrate", str(old), "--in-place"]) == 0

    lines = (old / "trials.jsonl").read_bytes().split(b"\n")
    assert [msgspec.json.decode(line)["schema"] for line in lines[:2]] == [1, 1]
    assert "result" not in msgspec.json.decode(lines[0])
    assert lines[1:] == [second, b""]
    assert store.load(old).records == tuple(RECORDS)
    assert [path.name for path in old.iterdir() if path.name.startswith(".")] == []
    assert capsys.readouterr().err.splitlines() == [
        f"brought 2 documents of {old} to the present schema",
        f"next: gcprof validate {old}",
    ]
    assert answer(["migrate", str(old), "--in-place"]) == 0
    assert "nothing to do" in capsys.readouterr().err


def test_migrating_to_a_new_folder_leaves_the_old_one(old, here):
    before = (old / "trials.jsonl").read_bytes()

    assert answer(["migrate", str(old), "-o", "new"]) == 0

    assert (old / "trials.jsonl").read_bytes() == before
    assert store.load(here / "new").records == tuple(RECORDS)
    assert (here / "new" / "logs" / "one.log").read_text() == "printed"
    assert answer(["migrate", str(old), "-o", "new"]) == 2


def test_an_old_run_is_not_changed_unless_it_is_said_where(old, capsys):
    assert answer(["migrate", str(old)]) == 2
    assert "--in-place" in capsys.readouterr().err


def test_a_present_run_has_nothing_to_do(here, capsys):
    folder = examples.run(here / "run", RECORDS).folder
    before = (folder / "trials.jsonl").read_bytes()

    assert answer(["migrate", str(folder), "--in-place"]) == 0

    assert capsys.readouterr().err == f"nothing to do: '{folder}' is of the present schema\n"
    assert (folder / "trials.jsonl").read_bytes() == before


def test_a_run_that_another_process_writes_to_is_left_alone(old, monkeypatch):
    monkeypatch.setattr(safe_files, "sleep", lambda seconds: None)
    writer = store.Writer(old)
    before = (old / "trials.jsonl").read_bytes()

    assert answer(["migrate", str(old), "--in-place"]) == 2
    assert (old / "trials.jsonl").read_bytes() == before

    writer.close()
    assert answer(["migrate", str(old), "--in-place"]) == 0


def test_a_damaged_run_is_not_begun_with(old):
    with (old / "trials.jsonl").open("ab") as file:
        file.write(b"{}\n")

    assert answer(["migrate", str(old), "--in-place"]) == 4


def test_two_ways_at_once_are_refused(old):
    assert answer(["migrate", str(old), "--in-place", "-o", "new"]) == 2
