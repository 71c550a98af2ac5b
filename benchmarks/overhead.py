"""Whether measuring slows what is measured: `just bench-overhead`.

Pairs gcprof's recorded median step with that of a bare training loop, each in a fresh process from the same server, in
five rounds of alternating order. Fails where the median ratio is more than 5 % from 1.
"""

from __future__ import annotations

import json
import os
import sys
import time
from statistics import median

import msgspec

from profiler.core.case import Case, Choice, Trial
from profiler.engines.local import Local

ROUNDS, SAMPLES, TOLERANCE = 5, 20, 0.05
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
            ratios = [_pair(engine, case, number) for number in range(ROUNDS)]
            print(f"{model:24} recorded / bare: {'  '.join(f'{r:.3f}' for r in ratios)}  median {median(ratios):.3f}")
            failed |= abs(median(ratios) - 1) > TOLERANCE
    return int(failed)


def _pair(engine: Local, case: Case, number: int) -> float:
    readers = {"recorded": _recorded, "bare": _bare}
    order = list(readers) if number % 2 else list(reversed(readers))
    found = {name: readers[name](engine, case) for name in order}
    return found["recorded"] / found["bare"]


def _recorded(engine: Local, case: Case) -> float:
    record = next(engine.run([Trial(case=case, passes=("time",))]))
    assert record.readings.step_seconds, record.detail
    return median(record.readings.step_seconds)


def _bare(engine: Local, case: Case) -> float:
    words = json.dumps([case.model, case.batch_size, case.samples + case.warmup + 1])
    return float(engine.ask("benchmarks.overhead:loop", words, failing="a bare loop")["seconds"])


def loop(request: str, channel: int) -> None:
    """A training loop as one writes it, in a fresh process: knows nothing of gcprof but the model."""
    import torch

    from profiler.core import catalogue
    from profiler.training import models

    name, batch_size, steps = json.loads(request)
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
