"""A real run whose tail is lost, at any byte."""

import os
import shutil
from pathlib import Path

import pytest

from profiler.runs import store

REAL = Path(__file__).parents[1] / "records" / "1"


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test can lose what the system has taken."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


# The tail of a real run is lost


def prefixes(folder: Path) -> list[int]:
    """How many records each prefix of the real run's file holds."""
    shutil.copytree(REAL, folder)
    whole = (REAL / "trials.jsonl").read_bytes()
    with (folder / "trials.jsonl").open("r+b") as file:
        for size in range(len(whole), -1, -1):
            file.truncate(size)
            run = store.load(folder)
            assert bool(run.warnings) == (whole[:size] != b"" and not whole[:size].endswith(b"\n"))
            yield len(run.records)


@pytest.mark.nightly
def test_fault_35_a_real_run_cut_at_any_byte_is_read(tmp_path):
    whole = (REAL / "trials.jsonl").read_bytes()

    found = list(prefixes(tmp_path / "run"))

    assert found[::-1] == [whole[:size].count(b"\n") for size in range(len(whole) + 1)]
    assert found[0] == 6
