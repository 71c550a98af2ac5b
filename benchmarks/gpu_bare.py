"""Loops of plain PyTorch on the CUDA device that is here, and what it is: `python -m benchmarks.gpu_bare [WORD ...]`.

They are those of `benchmarks.bare_loop`: of gcprof they use no more than the modules of its own models. Each line has
what `torch.cuda.max_memory_allocated` and events say, and whether the gradients of the first step equal those of the
plain loop to the bit. A second plain loop shows whether the step is deterministic at all. `--facts DEVICE` prints the
card's own numbers beside its file in configs/devices, and two ceilings instead.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from profiler.rehearsal.device import open_if_asked

open_if_asked()  # of a dry run: before torch is imported

import torch  # noqa: E402
from torch.utils.benchmark import Timer  # noqa: E402

from benchmarks import bare_loop  # noqa: E402
from benchmarks.instrument_rows import HEAD  # noqa: E402
from profiler.core import gpu_specs  # noqa: E402
from profiler.measuring.devices.cuda import Cuda  # noqa: E402

STEPS, WARMUP = 13, 3
LOOPS = (  # model, batch, optimizer, and how it is checkpointed
    ("mnist-cnn:channels=32,layers=30", 64, "sgd", "segments:k=8"),
    (f"hf:bert:{HEAD},intermediate_size=1024", 256, "adamw", "hf"),
    ("torchvision:resnet50", 32, "sgd", "all"),
)


def main() -> int:
    if sys.argv[1:2] == ["--facts"]:
        facts(sys.argv[2])
        return 0
    for model, batch_size, optimizer, strategy in LOOPS:
        if sys.argv[1:] and not any(word in model for word in sys.argv[1:]):
            continue
        row = {"model": model, "batch_size": batch_size, "optimizer": optimizer, "precision": "fp32"}
        plain: dict[str, torch.Tensor] = {}
        for name in ("none", "none again", strategy):
            torch._C._cuda_clearCublasWorkspaces()  # which torch keeps before 2.15
            torch.cuda.empty_cache()
            torch.manual_seed(0)
            began, gradients = time.monotonic(), dict[str, torch.Tensor]()
            figures: dict[str, Any] = bare_loop.run(
                {**row, "strategy": name.partition(" ")[0]}, timed=STEPS, gradients=gradients
            )
            plain = plain or gradients
            figures["equal"] = all(torch.equal(plain[key], gradients[key]) for key in plain)
            figures["median_milliseconds"] = median(figures["milliseconds"][WARMUP:])
            named = {"model": model, "batch_size": batch_size, "strategy": name}
            print(json.dumps({**named, **figures, "seconds": round(time.monotonic() - began, 1)}), flush=True)
    return 0


def facts(device_name: str) -> None:
    """Print what the card is beside its file in configs/devices, and two ceilings."""
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
    print(f"copy {2 * values.nbytes / _seconds(partial(torch.empty_like(values).copy_, values)) / 1e12:.3f} TB/s")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        square = torch.randn(8192, 8192, device="cuda").to(dtype)
        print(f"{dtype} {2 * 8192**3 / _seconds(partial(torch.matmul, square, square)) / 1e12:.0f} TFLOP/s")


def _seconds(function: Callable[[], object]) -> float:
    return float(Timer("function()", globals={"function": function}).timeit(10).mean)


if __name__ == "__main__":
    ended = main()
    sys.stdout.flush()
    os._exit(ended)  # with a thread of torch's still there, a hollow device's process may abort at its end
