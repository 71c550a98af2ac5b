"""Old schemas are read; a schema 0 is planted, since there is no old one yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.runs import store
from profiler.runs.reading import STEPS, Step, lifted
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


@pytest.mark.slow
def test_steps_lead_from_one_schema_to_the_next(monkeypatch):
    monkeypatch.setitem(STEPS, -1, Step(manifest=dict, record=lambda one: {**one, "a": 1}))
    monkeypatch.setitem(STEPS, 0, Step(manifest=dict, record=lambda one: {**one, "b": one["a"] + 1}))

    assert lifted(b'{"schema":-1}', "record") == b'{"schema":1,"a":1,"b":2}'
    assert lifted(b'{"schema":-1}', "manifest") == b'{"schema":1}'
    assert lifted(b'{"schema":1,"c":3}', "record") == b'{"schema":1,"c":3}'


def test_an_old_run_is_read_in_the_present_schema(old):
    before = (old / "trials.jsonl").read_bytes()

    assert store.load(old).records == tuple(RECORDS)
    assert store.read_manifest(old).command == "gcprof run mnist-cnn"
    assert (old / "trials.jsonl").read_bytes() == before
