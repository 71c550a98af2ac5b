"""How long the best plans of long chains take to find: `just bench-planner`.

Prints the processor seconds of whole frontiers, median of a few, against bounds, and fails where one is missed. That
the plans are the best ones is held by tests: against every plan of small chains, and files of a peer.
"""

import time
from itertools import product
from statistics import median

from msgspec.structs import replace

from benchmarks import is_missed
from profiler.planning.solver import frontier
from tests.planning_chains import random_chain

TIMES, SEED = 3, 0
GOALS: tuple[tuple[int, int | None, int | None, bool, float], ...] = (
    # stages, levels, points, with up to four save options a stage and inputs offloaded, seconds
    (100, 1, None, False, 0.5),
    (300, 1, None, False, 3.0),
    (1000, 1, 1000, False, 30.0),
    (48, None, None, False, 1.5),
    (100, None, 512, False, 8.0),
    (100, 1, None, True, 2.0),
    (300, 1, 1000, True, 10.0),
)


def main() -> int:
    num_missed = 0
    for (number, levels, points, offload, bound), kind in product(GOALS, ("network", "different")):
        # every stage with its own costs; or, in a network, eight groups of pairs of stages that are equal in a group
        places = range(number) if kind == "different" else [2 * (at * 8 // number) + at % 2 for at in range(number)]
        chain = random_chain(SEED, max(places) + 1, options=4 if offload else 0)
        chain = replace(chain, stages=tuple(chain.stages[place] for place in places))
        if offload:
            chain = replace(chain, host_rate=25e9)  # bytes a second: PCIe 4.0
        seconds = []
        for _ in range(TIMES):
            began = time.process_time()
            found = frontier(chain, levels=levels, points=points, offload=offload)
            seconds.append(time.process_time() - began)
        for index in {0, len(found) // 2, len(found) - 1}:
            found.point(index)  # the simulator agrees
        how = "options, inputs offloaded" if offload else "one level" if levels == 1 else "nested, any depth"
        title = f"{kind} {number}, {how}, {points or 'exact'}"
        told = f"s, {len(found)} plans, {found.lost_fraction:.2%} lost at most"
        num_missed += is_missed(title, median(seconds), bound, told)
    return int(num_missed > 0)
