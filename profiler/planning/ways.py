"""A plan beside what a user would pick instead, at the same budget: knows nothing of measurements."""

from __future__ import annotations

import msgspec

from profiler.planning import rules
from profiler.planning.chain import Chain
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

    A kind of which nothing fits is left out.
    """
    found = [Way(label=PLAN, plan=point.plan, cost=simulate(chain, point.plan))]
    for kind in KINDS:
        best = rules.best_of(chain, kind, budget_bytes)
        if best is not None:
            word, plan, cost = best
            found.append(Way(label=word, plan=plan, cost=cost))
    every = rules.all_stages(chain)
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
    before = [chain.input_bytes, *(stage.output_bytes for stage in chain.stages)]
    for stage, given in zip(chain.stages[::-1], before[-2::-1], strict=True):
        own = stage.saved_bytes if stage.own_saved_bytes is None else stage.own_saved_bytes
        forward = own + stage.forward_extra_bytes + stage.output_bytes + behind
        behind += stage.gradient_bytes
        backward = own + stage.backward_extra_bytes + stage.output_bytes + behind
        found.append((chain.static_bytes + chain.input_bytes + given + max(forward, backward), stage.name))
    nbytes, name = max(found)
    return name, max(nbytes, chain.floor_bytes)
