"""What a CUDA machine is: its software, the card's own numbers beside its file in configs/devices, and two ceilings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from profiler.rehearsal.device import open_if_asked

open_if_asked()  # of a dry run: before torch is imported
_began = time.monotonic()

import torch  # noqa: E402

from profiler.core import gpu_specs  # noqa: E402
from profiler.measuring.devices.cuda import Cuda  # noqa: E402

IMPORT_SECONDS = time.monotonic() - _began
COMMANDS = (
    "date -u", "nproc", "free -g", "df -h /", "uname -r", "nvidia-smi",
    "nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,PERFORMANCE,ECC,PIDS", f"{sys.executable} -m pip list",
)  # fmt: skip
TOOLS = ("gcc", "cc", "nm", "readelf", "nvcc", "ptxas", "git")


def main() -> int:
    for command in COMMANDS:
        print(f"$ {command}", flush=True)
        if shutil.which(command.split()[0]):
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(command.split(), timeout=10, check=False)
    print({tool: shutil.which(tool) for tool in TOOLS}, {"HOME": os.environ.get("HOME")})
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, imported in {IMPORT_SECONDS:.1f} s, {sys.version}")
    began = time.monotonic()
    torch.cuda.init()
    print(f"context {time.monotonic() - began:.2f} s, cuDNN {torch.backends.cudnn.version()}")
    free, total = torch.cuda.mem_get_info()
    print(f"context {total - free} bytes of {total}")
    properties = torch.cuda.get_device_properties(0)
    print({name: str(getattr(properties, name)) for name in dir(properties) if not name.startswith("_")})
    rates = gpu_specs.of_device(properties.name)
    print(f"file of {gpu_specs.word_of(properties.name)}: {rates}")
    print(f"bytes as the file has them: {rates is not None and rates.memory_bytes == properties.total_memory}")
    device = Cuda(sys.argv[1])
    print(device.facts(), device.conditions(), device.untold(), flush=True)
    _ceilings()
    return 0


def _ceilings() -> None:
    values = torch.rand(2**29, device="cuda")
    copy = torch.empty_like(values)
    print(f"copy {2 * values.nbytes / _seconds(lambda: copy.copy_(values)) / 1e12:.3f} TB/s")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        square = torch.randn(8192, 8192, device="cuda").to(dtype)
        print(f"{dtype} {2 * 8192**3 / _seconds(partial(torch.matmul, square, square)) / 1e12:.0f} TFLOP/s")
    host = torch.empty(2**28, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    print(f"to the GPU, pinned {2**28 / _seconds(lambda: there.copy_(host)) / 1e9:.1f} GB/s")


def _seconds(function: Callable[[], object], times: int = 10) -> float:
    for _ in range(3):
        function()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        function()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / times


if __name__ == "__main__":
    sys.exit(main())
