"""Traces of real small models, and traces made by hand."""

from collections.abc import Callable
from functools import cache
from typing import Any
from unittest import mock

from hypothesis import strategies as st

from profiler.core import catalogue
from profiler.core.case import Choice
from profiler.core.trace_data import CATEGORIES, Allocation, Operator, Trace
from profiler.training import STRATEGIES, models
from profiler.training.workload import Workload
from tests import make

SMALL = "transformer:layers=16,width=32,sequence=64,vocabulary=16"  # activations are nearly all of it
BLOCKS = ("blocks.0", "blocks.1")
MODULES = ("", "embed", "head", "blocks", "blocks.0", "blocks.0.a", "blocks.1", "blocks.1.b.c")


@cache
def traced(
    model: str,
    strategy: str = "none",
    *,
    build: Callable[[], Workload] | None = None,
    change: Callable[[Workload], Any] | None = None,
    optimizer: str = "sgd",
    with_saves: bool = False,
    **fields: Any,
) -> tuple[Trace, tuple[str, ...]]:
    """The trace of one step, and the names of the blocks; `change` is applied to the workload as a strategy is.

    A step that is asked for again is not traced again.
    """
    from profiler.predicting import traced_case
    from profiler.training.assemble import assemble

    chosen = {
        "model": catalogue.resolve(Choice(model), models.TABLE),
        "strategy": catalogue.resolve(Choice(strategy), STRATEGIES),
        "optimizer": Choice(optimizer),
    }

    def changed(*arguments: Any, **keywords: Any) -> Any:
        built = assemble(*arguments, **keywords)
        if change:
            change(built.workload)
        return built

    with mock.patch.object(traced_case, "assemble", changed):
        case = make.case(**{**chosen, "batch_size": 4, **fields})
        built, trace, _ = traced_case.trace_case(case, with_saves=with_saves, build=build)
    return trace, built.workload.blocks


def by_hand(operators: list[tuple[str, str]], allocations: list[tuple[int, int, int, str, str, str]]) -> Trace:
    """Operators as (phase, module); allocations as (bytes, born, died, module, phase, category)."""
    marks = [("zero", 0)]
    for number, (phase, _) in enumerate(operators):
        phase = "backward" if phase == "recompute" else phase
        if phase != marks[-1][0]:
            marks.append((phase, number))
    return Trace(
        allocations=tuple(
            Allocation(nbytes, born, died, "aten.made", module, phase, category)
            for nbytes, born, died, module, phase, category in allocations
        ),
        operators=tuple(Operator("aten.run", module, phase, 0, 1) for phase, module in operators),
        marks=(*marks, ("end", len(operators))),
    )


@st.composite
def random_traces(draw: st.DrawFn) -> Trace:
    """Small ones, of any shape that the types allow; some operators hide bytes."""
    phases = ("forward", "backward", "recompute", "optimizer")
    chosen = ["forward", *draw(st.lists(st.sampled_from(phases), max_size=12))]
    operators = tuple(
        Operator(
            "aten.run",
            draw(st.sampled_from(MODULES)),
            phase,
            0,
            draw(st.integers(0, 1)),
            draw(st.sampled_from((0, 0, 7))),
        )
        for phase in sorted(chosen, key=lambda phase: (phase == "optimizer", phase != "forward"))
    )
    allocations = []
    for _ in range(draw(st.integers(0, 12))):
        born = draw(st.integers(0, len(operators)))
        died = draw(st.integers(max(0, born - 1), len(operators)))  # one below: gone before the next operator ran
        phase = operators[born - 1].phase if born else "before"
        module, category = draw(st.sampled_from(MODULES)), draw(st.sampled_from(CATEGORIES))
        allocations.append(Allocation(draw(st.integers(1, 1000)), born, died, "aten.made", module, phase, category))
    ends = [sum(one.phase == "forward" for one in operators), sum(one.phase != "optimizer" for one in operators)]
    marks = (("zero", 0), ("forward", 0), ("backward", ends[0]), ("optimizer", ends[1]), ("end", len(operators)))
    return Trace(allocations=tuple(allocations), operators=operators, marks=marks)
