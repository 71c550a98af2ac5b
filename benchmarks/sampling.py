"""Whether sampling stops at the right time: `just bench-sampling`.

Simulates step times of which the median is known, stops as a round does, and prints how many samples that took, how
often the interval held the median though it was looked at again and again, and how often the median was within the
target. Then with a warm-up in front. Fails where the interval holds the median in less than 92 % of the rounds, where
the median is off in more than 5 %, or where at 1 or 2 % noise a tenth of the rounds keep a step of the warm-up. With
more noise the last of its steps are no slower than others.
"""

import random
from collections.abc import Callable
from itertools import product
from math import exp
from statistics import mean, median, quantiles

from profiler.core.stats import Sampling, interval, num_warmup, stop_reason

ROUNDS, MOST, LEAST = 1000, 3000, 5
TARGET = Sampling(precision_target=0.02, max_samples=MOST, max_seconds=1e9)
NOISES = (0.01, 0.02, 0.05, 0.1)
WARMUP = (3.0, 2.0, 1.6, 1.4)  # times the steady step
HELD, OFF, KEPT = 0.92, 0.05, 0.1
CALM = 0.02  # noise up to which all of the warm-up has to be found

SHAPES: dict[str, Callable[[random.Random, float], float]] = {
    "normal": lambda draw, noise: 1 + noise * draw.gauss(),
    "lognormal": lambda draw, noise: exp(noise * draw.gauss()),
    "hiccups": lambda draw, noise: 1 + noise * draw.gauss() + (draw.random() < 0.05) * draw.random(),
}
HEAD = "noise  shape       samples: median, 5 % and 95 %   interval holds   within 2 %   warm-up seen   a step kept"


def main() -> int:
    print(HEAD)
    num_missed = 0
    for shape, noise, warmup in (*product(SHAPES, NOISES, [()]), *product(["normal"], NOISES, [WARMUP])):
        draw, step = random.Random(f"{shape} {noise}"), SHAPES[shape]
        middle = median(step(draw, noise) for _ in range(400_000)) if shape == "hiccups" else 1.0
        rounds = []
        for _ in range(ROUNDS):
            rounds.append([factor * step(draw, noise) for factor in warmup])
            while len(rounds[-1]) < LEAST or stop_reason(rounds[-1], TARGET, least=LEAST) is None:
                rounds[-1].append(step(draw, noise))
        found = [num_warmup(one) for one in rounds]
        steady = [one[number:] for one, number in zip(rounds, found, strict=True)]
        counts = quantiles([len(one) for one in rounds], n=20, method="inclusive")
        held = mean(limits is not None and limits[0] <= middle <= limits[1] for limits in map(interval, steady))
        within = mean(abs(median(one) / middle - 1) <= TARGET.precision_target for one in steady)
        kept = mean(number < len(warmup) for number in found)
        print(
            f"{noise:5.0%}  {shape:10} {counts[9]:16.0f} {counts[0]:6.0f} {counts[18]:6.0f}"
            f" {held:20.1%} {within:12.1%} {mean(map(bool, found)):14.1%} {kept:13.1%}"
        )
        num_missed += within < 1 - OFF or ((noise <= CALM and kept > KEPT) if warmup else held < HELD)
    return int(num_missed > 0)
