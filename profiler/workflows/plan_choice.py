"""Chooses among measured ways to checkpoint: the simplest of those that no other one beats."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from profiler.analysis.rows import Row, time_verdict_of
from profiler.planning.candidates import Way
from profiler.planning.chain import Chain
from profiler.planning.simulator import slower_by


class ComparedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One way to checkpoint, and what is known of it."""

    way: Way
    predicted: Row | None = None  # by a traced step
    measured: Row | None = None


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The way to take, and why."""

    plan: ComparedPlan
    as_fast: tuple[str, ...] = ()  # labels of ways that are not significantly slower or faster, but less simple
    by_costs: tuple[str, ...] = ()  # labels of ways that are slower than it by costs, although not by measured times
    by_others: tuple[tuple[str, str], ...] = ()  # pairs of labels: by costs, the first way is slower than the second


def is_slower(row: Row | None, other: Row | None) -> bool:
    """Whether a row's steps took significantly longer than another's, by the rule of `time_ratio`."""
    return row is not None and other is not None and time_verdict_of(row, other) == "slower"


def choose(plans: Sequence[ComparedPlan], chain: Chain, budget_bytes: int) -> Chosen | None:
    """Return the way to take of those that were measured to fit the budget; None if none was.

    Ways are dropped if another was measured faster, then if another is faster by the costs, beyond their error; the
    simplest of the rest is taken.
    """
    fitting = [plan for plan in plans if _fits(plan, budget_bytes)]
    unbeaten = [plan for plan in fitting if not any(is_slower(plan.measured, other.measured) for other in fitting)]
    left = [plan for plan in unbeaten if not any(_is_slower_by_costs(chain, plan, other) for other in unbeaten)]
    if not left:
        return None
    chosen = min(left, key=simplicity)
    faster = {
        plan.way.name: [other.way.name for other in (chosen, *unbeaten) if _is_slower_by_costs(chain, plan, other)]
        for plan in unbeaten
        if plan not in left
    }
    return Chosen(
        plan=chosen,
        as_fast=tuple(plan.way.name for plan in left if plan is not chosen),
        by_costs=tuple(name for name, than in faster.items() if than[0] == chosen.way.name),
        by_others=tuple((name, than[0]) for name, than in faster.items() if than[0] != chosen.way.name),
    )


def simplicity(plan: ComparedPlan) -> tuple[int, bool, int, float]:
    """Return a sort key: fewer kinds of items, then ways with a name in the catalogue, then the smaller peak.

    Kinds are: a single stage under a checkpoint, a run of stages, a checkpoint in a checkpoint, each save option.
    """
    way = plan.way
    runs = [item for item in way.plan.items if isinstance(item, tuple)]
    kinds = {"alone" if len(run) == 1 else "run" for run in runs} | {name for _, name in way.plan.options}
    nested = way.plan.depth() > 1
    return len(kinds) + nested, not way.is_catalogue, way.cost.peak_bytes, way.cost.step_seconds


def _fits(plan: ComparedPlan, budget_bytes: int) -> bool:
    row = plan.measured
    peak = row.readings.peak_bytes if row is not None and row.outcome == "ok" else None
    return peak is not None and peak <= budget_bytes


def _is_slower_by_costs(chain: Chain, plan: ComparedPlan, other: ComparedPlan) -> bool:
    difference, error = slower_by(chain, plan.way.plan, other.way.plan)
    return difference > error


def sentences(chosen: Chosen) -> list[str]:
    """Return sentences on the choice, below a table that has all ways."""
    name = chosen.plan.way.name
    lines = []
    if chosen.as_fast:
        lines.append(
            f"{name} is chosen: its time cannot be told apart from {listed(chosen.as_fast)}, and it is the simplest"
        )
    else:
        lines.append(f"{name} is chosen: no other plan that fits was measured to be faster")
    if chosen.by_costs:
        lines.append(f"measured times cannot tell {listed(chosen.by_costs)} from it; by these costs it is faster")
    for name, faster in chosen.by_others:
        lines.append(f"measured times cannot tell {name} from it; by these costs {faster} is faster than {name}")
    return lines


def doubted(plans: Sequence[ComparedPlan], none_seconds: float) -> list[str]:
    """Return the labels of ways that were significantly faster than `none`, although they compute more."""
    return [
        plan.way.name
        for plan in plans
        if plan.measured is not None
        and plan.measured.time_verdict == "faster"
        and plan.way.cost.step_seconds > none_seconds
    ]


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
