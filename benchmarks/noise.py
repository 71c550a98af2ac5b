"""Whether times are told apart as often as they should be, on a machine that is not quiet: `just bench-noise`.

First simulated: how often the interval of a ratio holds the truth under noise of several kinds, how often `none` is
told from itself, and how often a step that is slower by a tenth is found. Then real: runs of `none` against itself and
runs with a planted delay, with so many processes that only compute beside them. Fails where a bound is missed.
"""

import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from operator import mul
from statistics import fmean, median
from subprocess import Popen

import torch

from benchmarks import parser, table, write
from profiler.analysis.time_ratio import TimeRatio, floor_of, of_pairs, verdict
from profiler.core import schedule
from profiler.core.stats import RoundSteps, Sampling, calm_ratios, pair_ratios, step_order
from profiler.measuring.devices import open_device
from profiler.measuring.meters import time as timing

SLOWER = 1.1
PAIRS, FEW_PAIRS = (12, 12, 12), schedule.PAIRS  # of each round; few: what a quiet machine takes at least
TOGETHER = 7  # strategies on one model
TRIES = 2000
LEAST, MOST = 0.93, 0.97
MOST_TOLD = 0.05
FOUND = {0: 0.9, 2: 0.0, 4: 0.6}  # by load: of the runs in which a tenth is planted
BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"  # a process that computes
NUM_REAL = 40
REAL_SECONDS = 0.25  # of one real round: 40 runs of both kinds at three loads are six minutes
SURE, TOLD = ("faster", "slower"), "`none` told from itself:"
STEPS = "step_seconds", "plain_step_seconds", "processor_seconds", "plain_processor_seconds"


def calm(draw: random.Random) -> Iterator[float]:
    return (draw.gauss(1, 0.02) for _ in count())


def bursts(draw: random.Random) -> Iterator[float]:
    """Another process starts, stays for some steps and ends."""
    left = 0
    while True:
        left = draw.randrange(3, 40) if left <= 0 and draw.random() < 0.03 else left - 1
        yield draw.gauss(1, 0.02) * (draw.uniform(1.5, 2) if left > 0 else 1)


def autocorrelated(draw: random.Random) -> Iterator[float]:
    level = 1.0
    while True:
        level = 1 + 0.9 * (level - 1) + draw.gauss(0, 0.03)
        yield max(0.1, level)


# of each kind, what yields by how much the next step is slower than it would be
NOISES: dict[str, Callable[[random.Random], Iterator[float]]] = {
    "normal, 2 %": calm,
    "skewed, 3 %": lambda draw: (1 + draw.expovariate(1 / 0.03) for _ in count()),
    "linear drift": lambda draw: (step * (1 + 0.005 * at) for at, step in enumerate(calm(draw), start=1)),
    "spikes of up to +100 %": lambda draw: (
        step * (1 + (draw.random() if draw.random() < 0.1 else 0)) for step in calm(draw)
    ),
    "bursts: another process": bursts,
    "autocorrelated": autocorrelated,
    "processes differ by 5 %": lambda draw: map(partial(mul, draw.gauss(1, 0.05)), calm(draw)),  # rounds see it
}


def simulated(draw: random.Random, noise: str, slower: float, *, pairs_of: Sequence[int], number: int) -> TimeRatio:
    """The ratio of a run of rounds of so many pairs, of the first of a number of strategies that are all as slow."""
    rounds = []
    for round_number, num_pairs in enumerate(pairs_of, start=1):
        now, steps = NOISES[noise](draw), list[tuple[float, float]]()
        for cycle in range(num_pairs):
            order = step_order(cycle, number, round_number=round_number)
            seconds = {place: (slower if place else 1.0) * next(now) for place in order}
            steps.append((seconds[1], seconds[0]))
        rounds.append(pair_ratios(*zip(*steps, strict=True)))
    return of_pairs(rounds)


def simulate(pairs_of: Sequence[int], number: int) -> tuple[str, bool]:
    """The table of simulated noise, and whether a bound was missed."""
    beside = f", {number} strategies together" if number > 1 else ""
    rows, missed = [], False
    for noise in NOISES:
        draw = random.Random(7)
        slower, alike = (
            [simulated(draw, noise, true, pairs_of=pairs_of, number=number) for _ in range(TRIES)]
            for true in (SLOWER, 1.0)
        )
        held = fmean(ratio.low is not None and ratio.low <= SLOWER <= ratio.high for ratio in slower)
        told = fmean(verdict(ratio) in SURE for ratio in alike)
        found = fmean(verdict(ratio) == "slower" for ratio in slower)
        missed |= not LEAST <= held <= MOST or told > MOST_TOLD
        rows.append((noise, *(f"{share:.1%}" for share in (held, half_width(slower), told, found))))
        print(*rows[-1], sep=" | ", flush=True)
    head = f"rounds of {', '.join(map(str, pairs_of))} pairs{beside}"
    return table(f"{head} | interval holds the truth: | half its width: | {TOLD} | 10 % found:", rows), missed


def half_width(ratios: Iterable[TimeRatio]) -> float:
    """Half the interval of the median run, as a fraction of its ratio."""
    return median(((ratio.high or 0.0) - (ratio.low or 0.0)) / 2 / ratio.ratio for ratio in ratios)


def real(num_more: int) -> TimeRatio:
    """The ratio of a run of three rounds, here all in one process; a step is 40 products, with the strategy more."""
    matrix, steps, is_on = torch.ones(128, 128) / 128, [], [False]

    def step(mark: Callable[[str], None]) -> None:
        mark("forward")
        product = matrix
        for _ in range(40 + num_more * is_on[0]):
            product = product @ matrix
        mark("end")

    for least_pairs in FEW_PAIRS:
        (found,) = timing.read(
            open_device("cpu"), step, [partial(is_on.__setitem__, 0)], warmup=1, samples=5,
            sampling=Sampling(max_seconds=REAL_SECONDS), least_pairs=least_pairs,
        )  # fmt: skip
        steps.append(RoundSteps(*(found[name] for name in STEPS)))
    return of_pairs(calm_ratios(steps))


def measure(loads: Sequence[int], tries: int) -> tuple[str, bool]:
    """The table of real runs, and whether a bound was missed. The floor of a run is that of the `none` run after it."""
    rows, missed = [], False
    for number in loads:
        with ExitStack() as beside:  # each ends with this process
            for _ in range(number):
                beside.callback(beside.enter_context(Popen([sys.executable, "-c", BUSY])).kill)
            time.sleep(1.0 if number else 0.0)
            alike, planted = ([real(num_more) for _ in range(tries)] for num_more in (0, 4))  # a tenth
            average = os.getloadavg()[0]
        floors = [floor_of(ratio) for ratio in (*alike[1:], alike[0])]
        told, found = (
            [verdict(ratio, floor=floor) for ratio, floor in zip(ratios, floors, strict=True)]
            for ratios in (alike, planted)
        )
        shares = fmean(word in SURE for word in told), fmean(word == "slower" for word in found)
        missed |= shares[0] > MOST_TOLD or shares[1] < FOUND.get(number, 0.0)
        cells = (f"{one:.1%}" for one in (*shares, half_width(planted)))
        rows.append((f"{number} busy processes beside", f"{average:.1f}", *cells))
        print(*rows[-1], sep=" | ", flush=True)
    head = f"{tries} runs each | load average then: | {TOLD} | 10 % found: | half the interval:"
    return table(head, rows), missed


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--loads", default=",".join(map(str, FOUND)), help="processes beside: 0,2,4; '' for none")
    arguments.add_argument("--runs", type=int, default=NUM_REAL, help="real runs of each kind")
    asked = arguments.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    tables = [simulate(*sizes) for sizes in ((PAIRS, 1), (FEW_PAIRS, 1), (FEW_PAIRS, TOGETHER))]
    of_loads, missed_real = measure([int(word) for word in asked.loads.split(",") if word], asked.runs)
    write(asked.output, "simulated", "\n".join(text for text, _ in tables))
    write(asked.output, "measured", f"{of_loads}\nOn {os.cpu_count()} cores, by one thread.")
    return int(missed_real or any(missed for _, missed in tables))
