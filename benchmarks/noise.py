"""Whether times are told apart as often as they should be, on a machine that is not quiet: `just bench-noise`.

First simulated: how often the interval of a ratio holds the truth under noise of several kinds, how often `none` is told
from itself, and how often a step that is slower by a tenth is found; beside it the same number of steps by the rule of
before, medians of processes in rounds. Then real: A/A runs of `none` and runs with a planted delay, with so many
processes that only compute beside them. Writes docs/noise.md with -o. Fails where a bound is missed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn

from profiler.analysis.telling_apart import TimeRatio, of_groups, of_rounds, verdict
from profiler.core.paired_steps import group_ratios, is_plain_first
from profiler.core.stats import Sampling
from profiler.measuring.devices import open_device
from profiler.measuring.meters import time as timing

SLOWER = 1.1
ROUNDS, PAIRS = 3, 12
TRIES = 2000
LEAST, MOST = 0.93, 0.97
MOST_TOLD = 0.05
FOUND = {0: 0.9, 2: 0.0, 4: 0.6}  # by load: of the runs in which a tenth is planted
LOADS = tuple(FOUND)
NUM_REAL = 40
MAX_SECONDS = 0.4  # of one real series
SURE = ("faster", "slower")
Noise = Callable[[random.Random], Callable[[float], float]]


class Series(NamedTuple):
    """Steps with the strategy and without it in one process, in pairs; then the same number in processes of their own."""

    pairs: list[tuple[float, ...]]
    rounds: list[float]

    @property
    def after(self) -> TimeRatio:
        return of_groups(self.pairs)

    @property
    def before(self) -> TimeRatio:
        return of_rounds(self.rounds)


# Simulated


def normal(draw: random.Random) -> Callable[[float], float]:
    return lambda true: true * draw.gauss(1, 0.02)


def skewed(draw: random.Random) -> Callable[[float], float]:
    return lambda true: true * (1 + draw.expovariate(1 / 0.03))


def drifting(draw: random.Random) -> Callable[[float], float]:
    at = 0

    def step(true: float) -> float:
        nonlocal at
        at += 1
        return true * draw.gauss(1, 0.02) * (1 + 0.005 * at)

    return step


def spiky(draw: random.Random) -> Callable[[float], float]:
    return lambda true: true * draw.gauss(1, 0.02) * (1 + (draw.random() if draw.random() < 0.1 else 0))


def bursts(draw: random.Random) -> Callable[[float], float]:
    """Another process starts, stays for some steps and ends."""
    left = 0

    def step(true: float) -> float:
        nonlocal left
        left = draw.randrange(3, 40) if left <= 0 and draw.random() < 0.03 else left - 1
        return true * draw.gauss(1, 0.02) * (draw.uniform(1.5, 2) if left > 0 else 1)

    return step


def autocorrelated(draw: random.Random) -> Callable[[float], float]:
    level = 1.0

    def step(true: float) -> float:
        nonlocal level
        level = 1 + 0.9 * (level - 1) + draw.gauss(0, 0.03)
        return true * max(0.1, level)

    return step


def processes(draw: random.Random) -> Callable[[float], float]:
    """Every process has a level of its own, by 5 %: what rounds see, and pairs do not."""
    level = draw.gauss(1, 0.05)
    return lambda true: true * level * draw.gauss(1, 0.02)


NOISES: dict[str, Noise] = {
    "normal, 2 %": normal,
    "skewed, 3 %": skewed,
    "linear drift": drifting,
    "spikes of up to +100 %": spiky,
    "bursts: another process": bursts,
    "autocorrelated": autocorrelated,
    "processes differ by 5 %": processes,
}


def simulated(draw: random.Random, noise: Noise, slower: float) -> Series:
    """A run of ROUNDS rounds."""
    pairs, rounds = [], []
    for _ in range(ROUNDS):
        step = noise(draw)
        own, plain = [], []
        for number in range(PAIRS):
            if is_plain_first(number):
                plain.append(step(1.0))
                own.append(step(slower))
            else:
                own.append(step(slower))
                plain.append(step(1.0))
        pairs.append(group_ratios(own, plain))
        own_process, other_process = noise(draw), noise(draw)
        own_median, other_median = (
            median(one(true) for _ in range(PAIRS)) for one, true in ((own_process, slower), (other_process, 1.0))
        )
        rounds.append(own_median / other_median)
    return Series(pairs, rounds)


def simulate() -> tuple[list[str], bool]:
    """The table of simulated noise, and whether a bound was missed."""
    lines = [
        "| noise | interval holds the truth: before | now | half its width: before | now "
        "| `none` told from itself: before | now | 10 % found: before | now |",
        "|---|" + "---:|" * 8,
    ]
    missed = False
    for name, noise in NOISES.items():
        draw = random.Random(7)
        truth = [simulated(draw, noise, SLOWER) for _ in range(TRIES)]
        alike = [simulated(draw, noise, 1.0) for _ in range(TRIES)]
        floors = [abs(simulated(draw, noise, 1.0).after.ratio - 1) for _ in range(0)]
        assert not floors
        cells = []
        held_now = _share(SLOWER_IN(series.after) for series in truth)
        told_now = _share(verdict(series.after) in SURE for series in alike)
        for share, now in (
            (_share(SLOWER_IN(series.before) for series in truth), held_now),
            (median(_half(series.before) for series in truth), median(_half(series.after) for series in truth)),
            (_share(verdict(series.before) in SURE for series in alike), told_now),
            (
                _share(verdict(series.before) == "slower" for series in truth),
                _share(verdict(series.after) == "slower" for series in truth),
            ),
        ):
            cells += [f"{share:.1%}", f"{now:.1%}"]
        missed |= not LEAST <= held_now <= MOST or told_now > MOST_TOLD
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines, missed


def SLOWER_IN(ratio: TimeRatio) -> bool:  # noqa: N802
    return ratio.low is not None and ratio.high is not None and ratio.low <= SLOWER <= ratio.high


def _half(ratio: TimeRatio) -> float:
    return ((ratio.high or 0.0) - (ratio.low or 0.0)) / 2 / ratio.ratio


def _share(found: Iterator[bool] | Sequence[bool]) -> float:
    every = list(found)
    return sum(every) / len(every)
