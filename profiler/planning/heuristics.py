"""The plans that one would pick without a solver: knows nothing of how plans are judged but by asking."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from profiler.planning.chain import Chain
from profiler.planning.plan import Item, Plan
from profiler.planning.simulator import Cost, simulate


def uniform(chain: Chain, k: int) -> Plan:
    """`torch.utils.checkpoint.checkpoint_sequential` with k segments: all of equal length, the last one is kept.

    Pinned stages are left out of the count; a segment that one falls into is cut there.
    """
    free = _free(chain)
    size = len(free) // k
    segment = {stage: place // size for place, stage in enumerate(free[: size * (k - 1)])}
    return _plan(chain, segment)


def first(chain: Chain, n: int) -> Plan:
    """The first n stages, each by itself, as Megatron's `block`."""
    return _singles(chain, _free(chain)[:n])


def every(chain: Chain, j: int) -> Plan:
    """Every j-th stage by itself, the first one among them."""
    return _singles(chain, _free(chain)[::j])


def all_stages(chain: Chain) -> Plan:
    """Every stage by itself, as in most libraries where checkpointing is on or off."""
    return _singles(chain, _free(chain))


RULES: dict[str, Callable[[Chain, int], Plan]] = {
    "uniform": uniform,
    "first": first,
    "every": every,
    "all": lambda chain, _: all_stages(chain),
}


def plans(chain: Chain, kind: str) -> Iterator[tuple[str, Plan]]:
    """Every plan of one rule, with its word: `uniform(4)`."""
    numbers = range(1, len(_free(chain)) + 1)
    if kind == "all":
        yield "all", all_stages(chain)
        return
    for number in numbers:
        yield f"{kind}({number})", RULES[kind](chain, number)


def best_of(chain: Chain, kind: str, budget: int) -> tuple[str, Plan, Cost] | None:
    """The fastest plan of one rule within so many bytes; None where none fits."""
    fitting = [one for one in costed(chain, kind) if one[2].peak_bytes <= budget]
    return min(fitting, key=lambda one: (one[2].step_seconds, one[2].peak_bytes), default=None)


def costed(chain: Chain, kind: str) -> list[tuple[str, Plan, Cost]]:
    """Every plan of one rule, with its word and what it costs."""
    return [(word, plan, simulate(chain, plan)) for word, plan in plans(chain, kind)]


def _free(chain: Chain) -> list[int]:
    return [stage for stage, costs in enumerate(chain.stages) if not costs.pinned]


def _singles(chain: Chain, stages: Sequence[int]) -> Plan:
    return _plan(chain, {stage: place for place, stage in enumerate(stages)})


def _plan(chain: Chain, segment: dict[int, int]) -> Plan:
    """Stages that follow each other in one segment are checkpointed together; those in none are kept."""
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
