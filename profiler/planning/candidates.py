"""A plan beside what a user would pick instead, at the same budget: knows nothing of measurements."""

from __future__ import annotations

import msgspec

from profiler.planning import heuristics
from profiler.planning.chain import Chain, Option, Stage
from profiler.planning.plan import Plan
from profiler.planning.simulator import Cost, simulate
from profiler.planning.solver import Point

KINDS = ("uniform", "first", "every")
PLAN = "plan"


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One way to checkpoint a chain, with what it costs by the stages' costs."""

    label: str
    plan: Plan
    cost: Cost


def ways(chain: Chain, point: Point, budget_bytes: int) -> tuple[Way, ...]:
    """The plan; the fastest uniform split, first N and every j-th that fit the budget; and all, fitting or not.

    A kind of which nothing fits, or only what all is too, is left out.
    """
    every = heuristics.all_stages(chain)
    found = [Way(label=PLAN, plan=point.plan, cost=simulate(chain, point.plan))]
    for kind in KINDS:
        best = heuristics.best_of(chain, kind, budget_bytes)
        if best is not None and best[1] != every:
            word, plan, cost = best
            found.append(Way(label=word, plan=plan, cost=cost))
    return (*found, Way(label="all", plan=every, cost=simulate(chain, every)))


def none(chain: Chain) -> Way:
    """Everything kept."""
    plan = Plan(items=tuple(range(len(chain.stages))))
    return Way(label="none", plan=plan, cost=simulate(chain, plan))


def largest_stage(chain: Chain) -> tuple[str, int]:
    """The stage that needs most while it is at work alone, by name, and the bytes of the whole step then: no plan by
    stages gets below it.
    """
    behind, found = 0, list[tuple[int, str]]()
    before = [0, *map(_given, chain.stages)]  # besides the chain's own input
    for stage, given in zip(chain.stages[::-1], before[-2::-1], strict=True):
        kept: tuple[Stage | Option, ...] = (stage, *stage.options)
        least = min(_at_work(stage, costs, behind) for costs in kept)
        behind += stage.gradient_bytes
        found.append((chain.static_bytes + chain.input_bytes + given + least, stage.name))
    nbytes, name = max(found)
    return name, max(nbytes, chain.floor_bytes)


def _given(stage: Stage) -> int:
    """The least of a stage that is there while the next one is at work."""
    return min(stage.output_bytes, stage.saved_bytes, *(option.saved_bytes for option in stage.options))


def _at_work(stage: Stage, costs: Stage | Option, behind: int) -> int:
    """What a stage needs beside its input, forward or backward; `behind` are the gradients of the stages behind it,
    which are not there yet in the forward of a stage that is kept."""
    own = costs.saved_bytes if costs.own_saved_bytes is None else costs.own_saved_bytes
    forward = costs.saved_bytes + costs.forward_extra_bytes
    backward = stage.output_bytes + own + costs.backward_extra_bytes + stage.gradient_bytes
    return max(forward, backward + behind)
