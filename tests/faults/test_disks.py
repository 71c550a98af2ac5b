"""Disks that are full before, during and after a run: what was written stays, and the rest is said."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from profiler.cli import answer
from profiler.runs import store
from tests.program import row_names

WORDS = ("--strategies", "none,all", "--device", "cpu", "--rounds", "1", "--samples", "1", "--warmup", "0")


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Files take so many bytes, as if the disk were full then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# 36: before, during, after


@pytest.mark.slow
def test_fault_36_a_disk_that_fills_during_the_run_stops_it_and_keeps_what_is_safe(
    here: Path, shared: None, capsys: Any
):
    with no_file_beyond(4000):  # one record, and some of the next
        code = answer(["run", "--model", "mlp", *WORDS, "-o", "run"])

    out, err = capsys.readouterr()
    assert code == 74
    assert "cannot write the result: File too large (it takes " in err
    assert err.splitlines()[-1] == "next: gcprof run --resume run"
    assert row_names(out) == ["none"]
    assert [record.case.strategy for record in store.load(here / "run").records] == ["none"]

    assert answer(["run", "--resume", "run"]) == 0
    assert [record.case.strategy for record in store.load(here / "run").records] == ["none", "all"]
