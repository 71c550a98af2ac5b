"""Whether measuring slows what is measured: `just bench-overhead`.

Times gcprof's recorded step and that of a bare training loop, each in a fresh process from the same server, in rounds
of alternating order: as many as it takes until the 95 % interval of the ratio of their median steps reaches at most 5 %
to either side, and no more than 40. Fails where the ratio is more than 5 % from 1, or still not known so well.

The loop asks glibc to keep freed memory in the process, as measuring does (docs/sampling.md). The ratio to a loop that
leaves glibc as it is, which maps pages anew in every step, is printed too, and has no bound.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import sys
import time
from statistics import median

import msgspec

from profiler.core.case import Case, Choice, Trial
from profiler.core.stats import ratio_of_pairs
from profiler.engines.local import Local

FEWEST, MOST, SAMPLES, TOLERANCE = 8, 40, 20, 0.05
BARE, AS_IT_IS = "bare", "bare, glibc as it is"
MODELS = {"mnist-cnn:channels=32": 64, "mlp:width=256": 256}


def main() -> int:
    failed = False
    with Local() as engine:
        for model, batch_size in MODELS.items():
            case = Case(
                model=Choice(model),
                strategy=Choice("none"),
                optimizer=Choice("sgd"),
                batch_size=batch_size,
                device="cpu",
                samples=SAMPLES,
            )
            failed |= not _is_as_fast(model, engine, case)
    return int(failed)


def _is_as_fast(model: str, engine: Local, case: Case) -> bool:
    """Print the ratios of a model; whether the recorded step is known to take as long as the bare one."""
    ratios: dict[str, list[float]] = {BARE: [], AS_IT_IS: []}
    reach = math.inf
    while len(ratios[BARE]) < FEWEST or (reach > TOLERANCE and len(ratios[BARE]) < MOST):
        seconds = _round(engine, case, len(ratios[BARE]))
        for kind, of_kind in ratios.items():
            of_kind.append(seconds["recorded"] / seconds[kind])
        ratio, limits = ratio_of_pairs(ratios[BARE])
        reach = max(limits[1] / ratio, ratio / limits[0]) - 1 if limits else math.inf
    for kind, of_kind in ratios.items():
        value, (low, high) = ratio_of_pairs(of_kind)
        print(
            f"{model:24} recorded / {kind:20} {value:.3f} ({low:.3f} to {high:.3f}), {len(of_kind)} rounds", flush=True
        )
    return reach <= TOLERANCE and abs(ratio - 1) <= TOLERANCE


def _round(engine: Local, case: Case, number: int) -> dict[str, float]:
    """The median step of each kind, in seconds."""
    readers = {
        "recorded": lambda: _recorded(engine, case),
        BARE: lambda: _bare(engine, case, keeps_memory=True),
        AS_IT_IS: lambda: _bare(engine, case, keeps_memory=False),
    }
    order = list(readers) if number % 2 else list(reversed(readers))
    return {name: readers[name]() for name in order}


def _recorded(engine: Local, case: Case) -> float:
    record = next(engine.run([Trial(case=case, passes=("time",))]))
    assert record.readings.step_seconds, record.detail
    return median(record.readings.step_seconds)


def _bare(engine: Local, case: Case, *, keeps_memory: bool) -> float:
    words = json.dumps([case.model, case.batch_size, case.samples + case.warmup + 1, keeps_memory])
    return float(engine.ask("benchmarks.overhead:loop", words, failing="a bare loop")["seconds"])


def loop(request: str, channel: int) -> None:
    """A training loop as one writes it, in a fresh process: knows nothing of gcprof but the model."""
    import torch

    from profiler.core import catalogue
    from profiler.training import models

    name, batch_size, steps, keeps_memory = json.loads(request)
    if keeps_memory:
        libc = ctypes.CDLL(None)
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD: never give freed memory back
        libc.mallopt(-4, 0)  # M_MMAP_MAX: map no block by itself
    build, options = catalogue.load(Choice(name), models.TABLE)
    torch.manual_seed(0)
    work = build(batch_size=batch_size, **options)
    module, (x, y) = work.module, work.batch
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    seconds = []
    for _ in range(steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    os.write(channel, msgspec.json.encode({"seconds": median(seconds[2:])}) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
