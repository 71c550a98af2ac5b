"""Runs made to keep a reader busy: what is done grows with what is read, not with its square."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.analysis import progress, timing_doubts
from profiler.analysis.rows import foretells, rows
from profiler.core.case import Trial
from profiler.core.record import Conditions, Record
from profiler.engines.local import Local
from profiler.views.report.section import prediction_pairs
from profiler.views.tables import grid as table_grid
from profiler.views.tables.grid import Column, words
from tests import make


def num_calls(work: Callable[[], object]) -> int:
    """How many functions are called, of Python and of C."""
    number = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return number


FEW, MANY = 50, 200
BASE = make.record("none")
SIZED = "rehearse:h100:memory=1073741824"
DEVICES = st.sampled_from(
    ["cuda:0", "cuda:1", "fake:cuda", "fake:h100", "fake:t4", "rehearse:h100", "rehearse:t4", SIZED]
)


def on(device: str) -> Record:
    return msgspec.structs.replace(BASE, case=msgspec.structs.replace(BASE.case, device=device))


def refused(batch_size: int) -> Record:
    case = msgspec.structs.replace(BASE.case, batch_size=batch_size)
    return msgspec.structs.replace(BASE, case=case, outcome="failed", built=None)


def calls_for_predictions(number: int) -> float:
    records = [on("cuda:0"), *(on(f"fake:x{at}") for at in range(number))]
    return num_calls(lambda: rows(records)) / number


def calls_for_refusals(number: int) -> float:
    refusals = [refused(at + 1) for at in range(number)]
    plan = [Trial(case=refused(10_000 + at).case) for at in range(number)]
    return num_calls(lambda: progress.owed(plan, refusals)) / number


def calls_for_refused_trials(number: int) -> float:
    engine = Local()
    engine._alone = lambda trial: refused(trial.case.batch_size)
    plan = [Trial(case=refused(at + 1).case) for at in range(number)]
    return num_calls(lambda: list(engine._one_by_one(plan))) / number


def calls_for_twins(number: int) -> float:
    cases = [
        msgspec.structs.replace(BASE.case, batch_size=at + 1, device=device)
        for at in range(number)
        for device in ("cuda:0", "fake:cuda")
    ]
    table = rows([msgspec.structs.replace(BASE, case=case) for case in cases])
    return num_calls(lambda: prediction_pairs(table)) / number


@pytest.mark.slow
@pytest.mark.parametrize(
    "calls", [calls_for_predictions, calls_for_refusals, calls_for_refused_trials, calls_for_twins]
)
def test_of_many_no_more_functions_are_called_for_each(calls):
    assert calls(MANY) < 1.2 * calls(FEW)


@given(clocks=st.lists(st.floats(1e8, 2e9), max_size=12))
def test_a_clock_falls_where_any_was_higher_before(clocks):
    moments = [Conditions(at_seconds=at, clock_hertz=clock) for at, clock in enumerate(clocks)]
    falls = any(later < timing_doubts.SLOWED * before for at, later in enumerate(clocks) for before in clocks[:at])

    assert timing_doubts._falls(moments) == falls


def laid_out(columns: list[Column], width: int) -> list[int] | None:
    return table_grid._widths([table_grid._sizes(column) for column in columns], width)


def one_by_one(natural: list[int], least: list[int], width: int) -> list[int] | None:
    """The widths where the widest column gives way by one, as often as it takes."""
    excess = sum(natural) + len(table_grid.GAP) * (len(natural) - 1) - width
    for _ in range(excess):
        giving = [at for at in range(len(natural)) if natural[at] > least[at]]
        if not giving:
            return None
        natural[max(giving, key=natural.__getitem__)] -= 1
    return natural


@given(
    cells=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=5),
    width=st.integers(1, 90),
)
def test_columns_give_way_as_if_by_one_at_a_time(cells, width):
    columns = [words("", "", [" ".join("x" * size for size in sizes)]) for sizes in cells]
    natural = [len(column.cells[0]) for column in columns]

    expected = one_by_one(natural, [max(sizes) for sizes in cells], width)

    assert laid_out(columns, width) == expected


@given(devices=st.lists(DEVICES, unique=True, max_size=7))
def test_a_peak_is_held_against_the_first_that_its_prediction_is_of(devices):
    made = [make.record("none", peak=(at + 1) * make.MIB) for at, _ in enumerate(devices)]
    table = rows(
        msgspec.structs.replace(record, case=on(device).case) for record, device in zip(made, devices, strict=True)
    )

    for row in table:
        held = [other for other in table if foretells(row.case, other.case) or foretells(other.case, row.case)]
        other = min(held, key=lambda other: other.evidence, default=None)
        if other is None:
            assert row.prediction_error is None
        else:
            predicted, real = (row, other) if row.case.is_predicted else (other, row)
            error = predicted.readings.peak_bytes / real.readings.peak_bytes - 1
            assert (row.prediction_error, row.prediction_against) == (error, real.evidence)


@given(devices=st.lists(DEVICES, unique=True, max_size=7))
def test_predictions_stand_beside_all_that_they_are_held_against(devices):
    table = rows([on(device) for device in devices])
    known = [row for row in table if row.prediction_error is not None]
    held = [
        pair
        for row in known
        for twin in known
        for pair in [(row, twin) if row.case.is_predicted else (twin, row)]
        if foretells(pair[0].case, pair[1].case)
        and not row.case.is_predicted
        and row.evidence == twin.prediction_against
    ]

    assert prediction_pairs(table) == held
