"""What a CUDA machine is: its software, the card's own numbers beside its file in configs/devices, and two ceilings."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from profiler.rehearsal.device import open_if_asked

open_if_asked()  # of a dry run: before torch is imported

import torch  # noqa: E402
from torch.utils.benchmark import Timer  # noqa: E402

from profiler.core import gpu_specs  # noqa: E402
from profiler.measuring.devices.cuda import Cuda  # noqa: E402

COMMANDS = (
    *("date -u", "nproc", "free -g", "df -h /", "nvidia-smi", "nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,ECC,PIDS"),
    f"{sys.executable} -m pip list",
)


def main() -> int:
    for command in COMMANDS:
        print(f"$ {command}", flush=True)
        if shutil.which(command.split()[0]):
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(command.split(), timeout=10, check=False)
    print(
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}, {sys.version}"
    )
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    print(f"context {total - free} bytes of {total}")
    properties = torch.cuda.get_device_properties(0)
    print(properties)
    rates = gpu_specs.of_device(properties.name)
    print(f"file of {gpu_specs.word_of(properties.name)}: {rates}")
    print(f"bytes as the file has them: {rates is not None and rates.memory_bytes == properties.total_memory}")
    device = Cuda(sys.argv[1])
    print(device.facts(), device.conditions(), device.untold(), flush=True)
    values = torch.rand(2**29, device="cuda")
    print(f"copy {2 * values.nbytes / _seconds(partial(torch.empty_like(values).copy_, values)) / 1e12:.3f} TB/s")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        square = torch.randn(8192, 8192, device="cuda").to(dtype)
        print(f"{dtype} {2 * 8192**3 / _seconds(partial(torch.matmul, square, square)) / 1e12:.0f} TFLOP/s")
    return 0


def _seconds(function: Callable[[], object]) -> float:
    return float(Timer("function()", globals={"function": function}).timeit(10).mean)


if __name__ == "__main__":
    sys.exit(main())
