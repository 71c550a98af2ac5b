"""Another process on the device, as the run's own word has it: by an engine that runs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from profiler.cli import answer
from profiler.core.case import Trial
from profiler.core.record import Conditions, Note, Record
from profiler.engines.local import Local
from profiler.runs import store
from tests.gpu_records import WELL, notes, record

SHARED = msgspec.structs.replace(WELL, num_others=1, others_bytes=3 * 2**30)
UNTOLD = Note(code="GCP031", text="other processes of the device are not known: no NVML")
WORDS = ["run", "--model", "mlp", "--segments", "2", "--device", "cpu", "--rounds", "1", "-o", "run"]


@pytest.mark.slow
def test_fault_48_other_processes_on_the_gpu_are_counted_with_what_they_hold():
    alone = msgspec.structs.replace(WELL, num_others=0, others_bytes=0)

    found = notes(record(conditions=(alone, SHARED)))["GCP012"]  # it appears while steps are timed

    assert "the device is shared with 1 other process that holds 3.00 GiB; another --device" in found
    assert "GCP012" not in notes(record(conditions=(alone, alone)))
    assert "other process;" in notes(record(conditions=(msgspec.structs.replace(SHARED, others_bytes=None),)))["GCP012"]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Conditions, ...]]:
    """What it is like in every trial: the engine runs nothing, and says so."""
    script: list[tuple[Conditions, ...]] = []

    def run(self: Local, trials: Sequence[Trial], done: Any = ()) -> Iterator[Record]:
        for trial in trials:
            found = record(conditions=script.pop(0))
            noted = () if found.readings.conditions else (UNTOLD,)
            yield msgspec.structs.replace(found, case=trial.case, round=trial.round, notes=noted)

    monkeypatch.setattr(Local, "__enter__", lambda self: self)
    monkeypatch.setattr(Local, "survey", lambda self: {"cpu": record().environment})
    monkeypatch.setattr(Local, "run", run)
    return script


def test_fault_48_where_the_device_must_be_exclusive_the_run_ends_with_3_and_keeps_what_there_is(here, script, capsys):
    script += [(WELL, SHARED)]

    assert answer([*WORDS, "--exclusive", "error"]) == 3

    err = capsys.readouterr().err
    assert "--exclusive error: the device is shared with 1 other process that holds 3.00 GiB" in err
    assert "--resume" in err
    assert len(store.load(here / "run").records) == 1
