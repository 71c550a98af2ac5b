"""What a prediction costs, and how near a composed one is: `just bench-predict`.

Traces a step of the 100-layer CNN and of BERT-base, each beside PyTorch's MemTracker on the same fake model and step in
alternating rounds; and composes the sweep none,1,2,4,8,16,32 from one trace of the CNN, beside seven separate traces.
Fails where a trace takes more than 0.6 s (CNN) or 1.5 s (BERT), where it is less than 5 times as fast as MemTracker,
where the sweep takes more than 1.2 s, or where peak or saved bytes are more than 1 % from those of a separate trace.
The load is printed: other work on the machine makes seconds longer, but hardly the ratio.
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
from profiler.predicting.prediction import memory_readings
from profiler.predicting.trace.compose import compose
from profiler.predicting.trace.fake_tensors import fake_tensors
from profiler.predicting.trace.step import follow
from profiler.predicting.traced_case import trace_case
from profiler.training.assemble import assemble
from profiler.training.checkpointing.split import split_as_torch
from profiler.training.workload import tensors

CNN, BERT = "mnist-cnn", "hf:bert:head=classification"
TRACE_SECONDS = {CNN: 0.6, BERT: 1.5}
SEGMENTS = (None, 1, 2, 4, 8, 16, 32)
SWEEP_SECONDS, SWEEP_DIFFERENCE, RATIO = 1.2, 0.01, 5.0
TRACES, ROUNDS, SWEEPS = 7, 3, 5
COMPARED = ("peak_bytes", "saved_bytes")


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
    for show in (_traces, _ratios, _sweep):
        for line in show():
            print(
                f"{line.name:46} {line.found:>32}  {line.bound:>16}  {'met' if line.is_met else 'MISSED'}", flush=True
            )
            lines.append(line)
    print(f"load after {_load()}")
    return int(not all(line.is_met for line in lines))


def _case(model: str, segments: int | None = None) -> Case:
    strategy = Choice(f"segments:k={segments}" if segments else "none")
    return Case(
        model=Choice(model), strategy=strategy, optimizer=Choice("sgd"), batch_size=64, device="fake:cpu", samples=1
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


def _sweep() -> list[Line]:
    composed = _composed()
    wall, busy = _seconds(_composed, SWEEPS)
    worst = 0.0
    for segments, own in zip(SEGMENTS, composed, strict=True):
        separate = memory_readings(trace_case(_case(CNN, segments))[1])
        worst = max([worst, *(abs(own[name] / separate[name] - 1) for name in COMPARED)])
    bound = f"at most {SWEEP_DIFFERENCE:.0%}"
    return [
        _within("sweep of 7 from one trace", wall, busy, SWEEP_SECONDS),
        Line("its peaks and saved bytes, against 7 traces", f"{worst:.4%} off", bound, worst <= SWEEP_DIFFERENCE),
    ]


def _composed() -> list[dict[str, Any]]:
    """The readings of the sweep, from one trace."""
    built, trace, _ = trace_case(_case(CNN), with_saves=True)
    blocks = built.workload.blocks
    runs = [split_as_torch(len(blocks), segments).checkpointed if segments else [] for segments in SEGMENTS]
    return [memory_readings(compose(trace, blocks, one)) for one in runs]


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
