"""What a traced step costs: `just bench-predict`. What the commands take as a whole is `just bench-answers`.

Traces a step of the 100-layer CNN and of BERT-base, each beside PyTorch's MemTracker on the same fake model and step in
alternating rounds. Fails where a trace takes more than 0.6 s (CNN) or 1.5 s (BERT), or where it is less than 5 times as
fast as MemTracker. The load is printed: other work on the machine makes seconds longer, but hardly the ratio.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

from torch.distributed._tools.mem_tracker import MemTracker

from profiler.core.case import Case, Choice
from profiler.predicting.trace.fake_tensors import fake_tensors
from profiler.predicting.trace.step import follow
from profiler.predicting.traced_case import trace_case
from profiler.training.assemble import assemble
from profiler.training.workload import tensors

CNN, BERT = "mnist-cnn", "hf:bert:head=classification"
TRACE_SECONDS = {CNN: 0.6, BERT: 1.5}
RATIO = 5.0
TRACES, ROUNDS = 7, 3


class Line(NamedTuple):
    """One number of the table, and whether it is within its bound."""

    name: str
    found: str
    bound: str
    is_met: bool


def main() -> int:
    warnings.filterwarnings("ignore", module=r"torch\.distributed\._tools")  # of modules without a backward
    print(f"load before {_load()}", flush=True)
    lines = []
    for show in (_traces, _ratios):
        for line in show():
            print(
                f"{line.name:46} {line.found:>32}  {line.bound:>16}  {'met' if line.is_met else 'MISSED'}", flush=True
            )
            lines.append(line)
    print(f"load after {_load()}")
    return int(not all(line.is_met for line in lines))


def _case(model: str) -> Case:
    return Case(
        model=Choice(model),
        strategy=Choice("none"),
        optimizer=Choice("sgd"),
        batch_size=64,
        device="fake:cpu",
        samples=1,
    )


def _traces() -> list[Line]:
    """Building the model, and the traced step."""
    found = []
    for model, bound in TRACE_SECONDS.items():
        wall, busy = _seconds(lambda model=model: trace_case(_case(model)), TRACES)
        found.append(_within(f"trace of {model}", wall, busy, bound))
    return found


def _ratios() -> list[Line]:
    """The step alone, ours with its settling."""
    found = []
    for model in TRACE_SECONDS:
        pairs = _rounds(_case(model))[1:]  # the first warms up
        ours, theirs = (median(side) for side in zip(*pairs, strict=True))
        ratio = median(other / own for own, other in pairs)
        shown = f"{theirs:.2f} s / {ours:.2f} s = {ratio:.1f} x"
        found.append(Line(f"MemTracker / gcprof, {model}", shown, f"at least {RATIO:.0f} x", ratio >= RATIO))
    return found


def _rounds(case: Case) -> list[tuple[float, float]]:
    """Seconds of a traced step and of one under MemTracker, in turns."""
    found = []
    with fake_tensors():
        built = assemble(case)
        optimizer, step = built.trainer()
        for _ in range(1 + ROUNDS):
            began = time.perf_counter()
            follow(built.workload, optimizer, step)
            between = time.perf_counter()
            tracker = MemTracker()
            tracker.track_external(built.workload.module, optimizer, *tensors(built.workload.batch))
            with tracker:
                step(lambda phase: None)
            found.append((between - began, time.perf_counter() - between))
    return found


def _seconds(work: Callable[[], Any], times: int) -> tuple[float, float]:
    """Median seconds on the clock and on the processor, after a warm-up."""
    work()
    wall, busy = [], []
    for _ in range(times):
        began, used = time.perf_counter(), time.process_time()
        work()
        wall.append(time.perf_counter() - began)
        busy.append(time.process_time() - used)
    return median(wall), median(busy)


def _within(name: str, wall: float, busy: float, bound: float) -> Line:
    return Line(name, f"{wall:.2f} s ({busy:.2f} s of processor)", f"under {bound} s", wall < bound)


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"


if __name__ == "__main__":
    sys.exit(main())
