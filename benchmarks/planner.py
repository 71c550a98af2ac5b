"""How long the best plans take to find, and what others find: `just bench-planner`.

Prints the time of whole frontiers, median of a few, against bounds; then, on a chain of twelve stages, a mixed-integer
programme beside ours. Fails where a bound is missed or the programme finds others.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from msgspec.structs import replace

from profiler.planning.chain import Chain, SaveOption, Stage, read
from profiler.planning.costs import Costs
from profiler.planning.dp_table import KeptIntervals
from profiler.planning.solver import frontier

TIMES = 3
MEBI = 1 << 20
PEER = Path(__file__).parent.parent / "tests" / "planning" / "hetero12.stages.json"
GOALS: tuple[tuple[str, int, int | None, int | None, bool, float], ...] = (
    # chain, stages, levels, points, with four save options a stage and inputs offloaded, seconds
    ("network", 100, 1, None, False, 0.5),
    ("different", 100, 1, None, False, 0.5),
    ("network", 300, 1, None, False, 3.0),
    ("different", 300, 1, None, False, 3.0),
    ("network", 1000, 1, 1000, False, 30.0),
    ("different", 1000, 1, 1000, False, 30.0),
    ("network", 48, None, None, False, 1.5),
    ("different", 48, None, None, False, 1.5),
    ("network", 100, None, 512, False, 8.0),
    ("different", 100, None, 512, False, 8.0),
    ("network", 100, 1, None, True, 2.0),
    ("different", 100, 1, None, True, 2.0),
    ("network", 300, 1, 1000, True, 10.0),
    ("different", 300, 1, 1000, True, 10.0),
)
HOST_RATE = 25e9  # bytes per second: PCIe 4.0


def main() -> int:
    missed = _speed()
    chain = read(PEER)
    missed |= not _integer_programme(chain)
    return int(missed)


def different(number: int) -> Chain:
    """Every stage with its own sizes and times."""
    draw = random.Random(0)
    return Chain(input_bytes=16 * MEBI, stages=tuple(_stage(draw, place) for place in range(number)))


def network(number: int) -> Chain:
    """Eight groups of pairs of stages, equal within a group, as in a residual network."""
    kinds = different(16).stages
    stages = (kinds[2 * (place * 8 // number) + place % 2] for place in range(number))
    return Chain(input_bytes=16 * MEBI, stages=tuple(stages))


CHAINS: dict[str, Callable[[int], Chain]] = {"network": network, "different": different}


def _stage(draw: random.Random, place: int) -> Stage:
    def some(least: float, most: float) -> int:
        return int(output * draw.uniform(least, most)) // 512 * 512

    output = draw.randint(MEBI, 64 * MEBI) // 512 * 512
    own, seconds = some(1.5, 6), output * draw.uniform(0.5, 2) * 1e-10
    return Stage(
        name=f"stage{place}",
        forward_seconds=seconds,
        backward_seconds=seconds * draw.uniform(1.8, 2.2),
        output_bytes=output,
        saved_bytes=own + output,
        own_saved_bytes=own,
        forward_extra_bytes=some(0, 1),
        plain_forward_extra_bytes=some(0, 0.5),
        backward_extra_bytes=some(1, 2.5),
    )


def with_options(chain: Chain, number: int = 4) -> Chain:
    """The chain with so many save options for each stage, and a host to copy to."""
    draw = random.Random(1)
    made = {stage: tuple(_option(draw, stage, (place + 1) / (number + 1)) for place in range(number))
            for stage in dict.fromkeys(replace(stage, name="") for stage in chain.stages)}  # fmt: skip
    stages = tuple(replace(stage, options=made[replace(stage, name="")]) for stage in chain.stages)
    return replace(chain, stages=stages, host_rate=HOST_RATE)


def _option(draw: random.Random, stage: Stage, share: float) -> SaveOption:
    own = int((stage.own_saved_bytes or 0) * share) // 512 * 512
    return SaveOption(
        name=f"{share:.0%}",
        saved_bytes=own + stage.output_bytes,
        own_saved_bytes=own,
        forward_extra_bytes=stage.forward_extra_bytes,
        backward_extra_bytes=stage.backward_extra_bytes + (stage.own_saved_bytes or 0) - own,
        forward_seconds=stage.forward_seconds,
        backward_seconds=stage.backward_seconds + stage.forward_seconds * (1 - share) * draw.uniform(0.6, 0.9),
    )


def _speed() -> bool:
    print(f"{'whole frontier':46} {'median s':>8} {'bound s':>8} {'plans':>6} {'lost at most':>12}")
    missed = False
    for kind, number, levels, points, offload, bound in GOALS:
        chain = with_options(CHAINS[kind](number)) if offload else CHAINS[kind](number)
        seconds = []
        for _ in range(TIMES):
            began = time.perf_counter()
            found = frontier(chain, levels=levels, points=points, offload=offload)
            seconds.append(time.perf_counter() - began)
        for index in {0, len(found) // 2, len(found) - 1}:
            found.point(index)  # the simulator agrees
        took = median(seconds)
        how = "4 options, inputs offloaded" if offload else "one level" if levels == 1 else "nested, any depth"
        word = f"{kind} {number}, {how}, {f'{points} points' if points else 'exact'}"
        late = "  missed" if took > bound else ""
        print(f"{word:46} {took:8.2f} {bound:8.2f} {len(found):6} {found.lost_fraction:12.2%}{late}", flush=True)
        missed |= took > bound
    return missed


def _integer_programme(chain: Chain) -> bool:
    """Whether the best one-level plan for a few budgets by HiGHS is ours."""
    found = frontier(chain)
    agrees = True
    print("\nThe same by mixed-integer programming (HiGHS), one level, one budget at a time:")
    for index in range(0, len(found), 6):
        budget = found.peak_bytes[index]
        began = time.perf_counter()
        seconds = _highs(chain, budget)
        took = time.perf_counter() - began
        same = abs(seconds - found.step_seconds[index]) < 1e-9
        agrees &= same
        print(f"{budget / MEBI:8.0f} MiB {seconds * 1e3:8.1f} ms in {took:6.3f} s, {'as ours' if same else 'NOT ours'}")
    return agrees


def _highs(chain: Chain, budget: int) -> float:
    """A binary variable for every kept stage and every segment; each stage is in one of them.

    What is held before a stage is linear in them, and what works on top of it must fit within the budget.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    choices = _choices(chain)
    number = len(chain.stages)
    cover = np.array([[first <= stage <= last for first, last, *_ in choices] for stage in range(1, number + 1)])
    held = np.array(
        [
            [held if last < first else peak * (other == place) for other, (_, last, held, _, _) in enumerate(choices)]
            for place, (first, _, _, peak, _) in enumerate(choices)
        ]
    )
    solved = milp(
        c=[seconds for *_, seconds in choices],
        integrality=np.ones(len(choices)),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(cover.astype(float), 1, 1),
            LinearConstraint(held / MEBI, ub=(budget - chain.input_bytes) / MEBI),
        ],
    )
    return float(solved.fun)


def _choices(chain: Chain) -> list[tuple[int, int, int, int, float]]:
    """First and last stage, bytes held afterwards, bytes at work, seconds: for kept stages, then for segments."""
    costs, number = Costs(chain), len(chain.stages)
    kept = KeptIntervals(costs)
    found = []
    for first in range(1, number + 1):
        way = costs.keeps[first][0]
        floor = costs.keep_floor(first, number + 1, way)
        found.append((first, first, way.saved, floor, way.ticks / costs.second))
        forward = costs.plain_forward(first, number + 1).tolist()
        for last, plain in enumerate(forward, start=first):
            inner = kept.of(first, last)
            seconds = (costs.forward_sums(first, last - first + 1)[-1] + inner.ticks[0]) / costs.second
            found.append((first, last, costs.output[last], max(plain, int(inner.nbytes[0])), float(seconds)))
    return found


if __name__ == "__main__":
    sys.exit(main())
