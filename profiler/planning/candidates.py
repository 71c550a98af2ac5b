"""Plans from simple rules, without a solver, to compare with a solver's plan at the same budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

import msgspec

from profiler.planning.chain import Chain, Item, Plan, SaveOption, Stage, render
from profiler.planning.simulator import Cost, simulate
from profiler.planning.solver import Point

PLAN = "plan"


def uniform(chain: Chain, k: int) -> Plan:
    """Return the plan of `torch.utils.checkpoint.checkpoint_sequential`: k equal segments, the last of which is kept.

    Pinned stages are not counted; a segment that contains one is cut there.
    """
    free = _free(chain)
    size = len(free) // k
    segment = {stage: place // size for place, stage in enumerate(free[: size * (k - 1)])}
    return _plan(chain, segment)


def first(chain: Chain, n: int) -> Plan:
    """Return the plan that checkpoints each of the first n stages by itself, as Megatron's `block`."""
    return _singles(chain, _free(chain)[:n])


def every(chain: Chain, j: int) -> Plan:
    """Return the plan that checkpoints every j-th stage by itself, from the first on."""
    return _singles(chain, _free(chain)[::j])


def all_stages(chain: Chain) -> Plan:
    """Return the plan that checkpoints every stage by itself, as most libraries do if checkpointing is on."""
    return _singles(chain, _free(chain))


RULES: dict[str, Callable[[Chain, int], Plan]] = {"uniform": uniform, "first": first, "every": every}
KINDS = tuple(RULES)


def plans(chain: Chain, kind: str) -> Iterator[tuple[str, Plan]]:
    """Yield every plan of one rule, with its label: `uniform(4)`."""
    for number in range(1, len(_free(chain)) + 1):
        yield f"{kind}({number})", RULES[kind](chain, number)


def best_of(chain: Chain, kind: str, budget: int) -> tuple[str, Plan, Cost] | None:
    """Return the fastest plan of one rule within a budget in bytes; None if none fits."""
    fitting = [candidate for candidate in costed(chain, kind) if candidate[2].peak_bytes <= budget]
    return min(fitting, key=lambda candidate: (candidate[2].step_seconds, candidate[2].peak_bytes), default=None)


def costed(chain: Chain, kind: str) -> list[tuple[str, Plan, Cost]]:
    """Return every plan of one rule, with its label and its cost."""
    return [(word, plan, simulate(chain, plan)) for word, plan in plans(chain, kind)]


def _free(chain: Chain) -> list[int]:
    """Return the stages that may be checkpointed."""
    return [stage for stage, costs in enumerate(chain.stages) if not costs.pinned]


def _singles(chain: Chain, stages: Sequence[int]) -> Plan:
    return _plan(chain, {stage: place for place, stage in enumerate(stages)})


def _plan(chain: Chain, segment: dict[int, int]) -> Plan:
    """Return the plan that checkpoints consecutive stages of one segment together, and keeps stages of no segment."""
    items: list[Item] = []
    run: list[int] = []
    for stage in range(len(chain.stages)):
        if run and segment.get(stage) != segment[run[0]]:
            items.append(tuple(run))
            run = []
        if stage in segment:
            run.append(stage)
        else:
            items.append(stage)
    return Plan(items=(*items, tuple(run)) if run else tuple(items))


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One way to checkpoint a chain, with its simulated cost."""

    label: str
    plan: Plan
    cost: Cost
    same: tuple[str, ...] = ()  # the labels of other ways with the same plan

    @property
    def name(self) -> str:
        """The label, with those of equal plans: `plan = uniform(3)`."""
        return " = ".join((self.label, *self.same))

    @property
    def is_catalogue(self) -> bool:
        """Whether a strategy of the catalogue gives the same plan."""
        return self.label != PLAN or bool(self.same)


def ways(chain: Chain, point: Point, budget_bytes: int) -> tuple[Way, ...]:
    """Return the solver's plan, the fastest `uniform`, `first` and `every` that fit the budget, and `all` in any case.

    Equal plans are one way. A rule without a plan that fits is left out.
    """
    labels: dict[str, list[str]] = {}
    plans = {PLAN: point.plan}
    for kind in KINDS:
        best = best_of(chain, kind, budget_bytes)
        if best is not None:
            plans[best[0]] = best[1]
    plans["all"] = all_stages(chain)
    if plans["all"] != point.plan:
        plans = {word: plan for word, plan in plans.items() if word == "all" or plan != plans["all"]}
    for word, plan in plans.items():
        labels.setdefault(render(plan), []).append(word)
    return tuple(
        Way(label=first, same=tuple(same), plan=plans[first], cost=simulate(chain, plans[first]))
        for first, *same in labels.values()
    )


def none(chain: Chain) -> Way:
    """Return the way that keeps everything."""
    plan = Plan(items=tuple(range(len(chain.stages))))
    return Way(label="none", plan=plan, cost=simulate(chain, plan))


def whole_bytes(chain: Chain) -> int:
    """Return the peak without checkpointing, of which a budget may be a percentage: as traced, else by the costs."""
    return chain.traced_peak_bytes or none(chain).cost.peak_bytes


def cost_limit(chain: Chain, budget_bytes: int) -> int:
    """Return the most bytes that a plan's costs may add up to: those of `none`, if its traced step fits the budget."""
    none_fits = 0 < chain.traced_peak_bytes <= budget_bytes
    return max(budget_bytes, none(chain).cost.peak_bytes) if none_fits else budget_bytes


def largest_stage(chain: Chain) -> tuple[str, int]:
    """Return the name of the stage that needs most memory by itself, and the step's peak then.

    This is a lower bound of the peak of every plan.
    """
    behind, peaks = 0, list[tuple[int, str]]()
    for stage, before in zip(chain.stages[::-1], _before(chain)[::-1], strict=True):
        least = min(_at_work(stage, costs, behind) for costs in stage.ways)
        behind += stage.gradient_bytes
        peaks.append((chain.static_bytes + chain.input_bytes + before + least, stage.name))
    nbytes, name = max(peaks)
    return name, max(nbytes, chain.floor_bytes)


def _before(chain: Chain) -> list[int]:
    """Return for each stage the least bytes that earlier stages hold while it runs, besides the chain's own input.

    These are what pinned stages save and, for an unpinned stage just before, its output, or what it saves if less.
    Outputs further before may wait in host memory, where the chain has a rate of copies.
    """
    kept, before = 0, [0]
    for stage in chain.stages[:-1]:
        saved, own = _least_saved(stage), min(costs.own_bytes for costs in stage.ways)
        away = chain.host_rate > 0
        there = min(saved, own + stage.output_bytes) if away else saved
        before.append(kept + (there if stage.pinned else min(stage.output_bytes, saved)))
        kept += (own if away else saved) if stage.pinned else 0
    return before


def kept_before(chain: Chain, name: str) -> int:
    """Return the least bytes that pinned stages before the named one save: no plan checkpoints them."""
    before = takewhile(lambda stage: stage.name != name, chain.stages)
    return sum(_least_saved(stage) for stage in before if stage.pinned)


def _least_saved(stage: Stage) -> int:
    return min(costs.saved_bytes for costs in stage.ways)


def _at_work(stage: Stage, costs: Stage | SaveOption, behind: int) -> int:
    """Return the bytes that a stage needs besides its input, in its forward or its backward, whichever are more.

    `behind` are the parameter gradients of later stages, which a kept stage's forward does not have yet.
    """
    forward = costs.saved_bytes + costs.forward_extra_bytes
    backward = stage.output_bytes + costs.own_bytes + costs.backward_extra_bytes + stage.gradient_bytes
    return max(forward, backward + behind)
