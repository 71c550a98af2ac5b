"""Steps on the CUDA device that is here, several at a time, for their bytes: `python -m benchmarks gpu_rows FILE`.

The rows are those of `benchmarks.instrument`, shuffled, so that a part of them is spread over all. Each is a trial in
a process of its own, whose allocator counts for itself, so that neighbors change no figure. The records go to FILE, one
a line, as they come: a run that is cut off loses what was at work. `--against` needs no GPU: under the torch that
measured the file's rows it rehearses and predicts the same steps for the GPU that the records name, and prints how far
each is from what was measured.

`--facts DEVICE` prints the card's own numbers beside its file in configs/devices, and two ceilings.
"""

import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec.structs import replace

from benchmarks import keep, kept, parser, record
from benchmarks.instrument import READINGS, rows
from profiler.core import gpu_specs
from profiler.core.case import OPERATORS
from profiler.core.gpu_specs import FAKE, REHEARSE
from profiler.core.record import Record
from profiler.engines.local import Local
from profiler.rehearsal.device import open_if_asked


def main() -> int:
    arguments = parser(__doc__, "the file")
    arguments.add_argument("--workers", type=int, default=6)
    arguments.add_argument("--seconds", type=float, default=120.0, help="no row begins later")
    arguments.add_argument("--most", type=int, help="rows")
    arguments.add_argument("--against", action="store_true", help="rehearse and predict what the file holds")
    arguments.add_argument("--facts", metavar="DEVICE", help="what the card is")
    asked = arguments.parse_args()
    if asked.facts:
        facts(asked.facts)
        sys.stdout.flush()
        os._exit(0)  # with a thread of torch's still there, a hollow device's process may abort at its end
    (file,) = map(Path, asked.names)
    if asked.against:
        return against(file, asked.most)
    every = list(dict.fromkeys(row.case("cuda:0") for row in rows() if ".py:" not in row.model))  # no paths
    random.Random(0).shuffle(every)
    until, outcomes = time.monotonic() + asked.seconds, []
    cases = iter(every[: asked.most])

    def work(engine: Local) -> None:
        with engine:
            while time.monotonic() < until and (case := next(cases, None)):
                found = record(engine, case, "memory", *([OPERATORS] if case.strategy == "none" else []))
                keep(file, found)
                outcomes.append(found.outcome)
                print(f"{found.readings.peak_bytes or 0:>15,} {_words(found)}", flush=True)

    with ThreadPoolExecutor(asked.workers) as pool:
        list(pool.map(work, [Local(stage_seconds=60.0) for _ in range(asked.workers)]))
    print(f"{outcomes.count('ok')} ok of {len(outcomes)}, {len([*cases])} left")
    return int("ok" not in outcomes)


def against(file: Path, most: int | None) -> int:
    """Print how far the rehearsal and the blind prediction of each measured row are off."""
    measured = [found for found in kept(file, Record) if found.outcome == "ok"]
    with Local(rehearses=True) as rehearsing, Local(measures=False) as plain:
        for found in measured[:most]:
            name = found.environment.device_name if found.environment else None
            gpu = gpu_specs.word_of(name or "")
            assert gpu, f"no file in configs/devices is of {name}"
            rehearsed, predicted = (
                _apart(found, record(engine, replace(found.case, device=device + gpu)))
                for engine, device in ((rehearsing, REHEARSE), (plain, FAKE))
            )
            print(f"rehearsed {rehearsed}   predicted {predicted}   {_words(found)}", flush=True)
    return 0


def _words(found: Record) -> str:
    case, detail = found.case, f": {found.detail}" if found.detail else ""
    words = f"{case.model} b{case.batch_size} {case.precision} {case.optimizer} {case.strategy}"
    return f"{words} {found.outcome}{detail}"[:300]


def _apart(measured: Record, other: Record) -> str:
    """The relative difference of peak, saved and reserved bytes."""
    if other.outcome != "ok":
        return f"{other.outcome}: {(other.detail or '')[:60]}"
    pairs = [(getattr(measured.readings, name), getattr(other.readings, name)) for name in READINGS]
    return " ".join(f"{theirs / own - 1:+9.3%}" if own and theirs is not None else f"{'-':>9}" for own, theirs in pairs)


def facts(device_name: str) -> None:
    """Print what the card is beside its file in configs/devices, and two ceilings."""
    open_if_asked()  # of a dry run: before torch is imported
    import torch
    from torch.utils.benchmark import Timer

    from profiler.measuring.devices.cuda import Cuda

    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    print(f"context {total - free} bytes of {total}")
    properties = torch.cuda.get_device_properties(0)
    print(properties)
    rates = gpu_specs.of_device(properties.name)
    print(f"file of {gpu_specs.word_of(properties.name)}: {rates}")
    print(f"bytes as the file has them: {rates is not None and rates.memory_bytes == properties.total_memory}")
    device = Cuda(device_name)
    print(device.facts(), device.conditions(), device.untold(), flush=True)
    values = torch.rand(2**29, device="cuda")
    copied = Timer("empty.copy_(values)", globals={"values": values, "empty": torch.empty_like(values)})
    print(f"copy {2 * values.nbytes / copied.timeit(10).mean / 1e12:.3f} TB/s")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        squared = Timer("square @ square", globals={"square": torch.randn(8192, 8192, device="cuda").to(dtype)})
        print(f"{dtype} {2 * 8192**3 / squared.timeit(10).mean / 1e12:.0f} TFLOP/s")
