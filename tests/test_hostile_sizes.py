"""Runs made to keep a reader busy: what is done grows with what is read, not with its square."""

import sys
from collections.abc import Callable
from types import FrameType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.analysis import progress
from profiler.analysis.rows import rows
from profiler.core.case import Trial
from profiler.core.record import Record
from profiler.engines.local import Local
from profiler.views import tables as layout
from profiler.views.report.section import prediction_pairs
from profiler.views.tables import Column, words
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


def laid_out(columns: list[Column], width: int) -> list[int] | None:
    return layout._widths([layout._sizes(column, width) for column in columns], width)


def one_by_one(natural: list[int], least: list[int], width: int) -> list[int] | None:
    """The widths where the widest column gives way by one, as often as it takes."""
    excess = sum(natural) + len(layout.GAP) * (len(natural) - 1) - width
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
