"""Opens the hollow CUDA device in this process, before torch is imported."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Annotated

import msgspec

from profiler import rates
from profiler.errors import UserError
from profiler.kinds import HOLLOW
from profiler.rates import Rates
from profiler.rehearse.build import libraries

ASKED = "GCPROF_HOLLOW"  # the variable by which processes are told to open it: `h100`, or `t4,count=2,bytes=4294967296`
ORDER = (
    "libcudart",
    "libcublasLt",
    "libcublas",
    "libcudnn",
    "libnccl",
    "libcufft",
    "libnvrtc",
    "libcuda",
    "libnvidia-ml",
)
# by compute capability: blocks that are resident on a multiprocessor, and KiB of shared memory that one block may ask
# for. Source: CUDA C++ Programming Guide, technical specifications per compute capability
LIMITS = {
    (7, 0): (32, 96), (7, 5): (16, 64), (8, 0): (32, 163), (8, 6): (16, 99), (8, 9): (24, 99), (9, 0): (32, 227),
    (10, 0): (32, 227), (12, 0): (24, 99),
}  # fmt: skip


class Hollow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which device to be. Bytes; None where they are those of the GPU."""

    gpu: str  # a word of configs/devices
    count: Annotated[int, msgspec.Meta(ge=1, le=16)] = 1  # MAX_DEVICES of hollow/hollow.h
    bytes: Annotated[int, msgspec.Meta(ge=1, le=2**50)] | None = None  # memory of each
    context_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**50)] = 0  # what a context takes of it


def parse(text: str) -> Hollow:
    """`t4,count=2,bytes=4294967296` -> Hollow. Raises UserError for what is no such word."""
    gpu, *settings = text.split(",")
    pairs = dict(setting.partition("=")[::2] for setting in settings)
    try:
        return msgspec.convert({"gpu": gpu, **pairs}, Hollow, strict=False)
    except msgspec.ValidationError as error:
        raise UserError(f"{ASKED}: '{text}': {error}", hint="for example h100, or t4,count=2") from None


def prepare_if_asked() -> None:
    """Build what `open_if_asked` will open in another process.

    Raises UserError for all that would stop it there: no such word or GPU, libraries that cannot be built.
    """
    if text := os.environ.get(ASKED):
        _kind(rates.find(parse(text).gpu))
        libraries()


def open_if_asked() -> None:
    """Open the device that the environment asks for, if it asks for one."""
    if text := os.environ.get(ASKED):
        open_hollow(parse(text))


def open_hollow(hollow: Hollow) -> None:
    """Make torch, which must not be imported yet, see hollow devices instead of real ones, here and in children.

    Raises UserError where the libraries cannot be built, or where torch is there already.
    """
    gpu = rates.find(hollow.gpu)
    if "torch" in sys.modules and not is_open():
        raise UserError("a hollow device is opened before torch is imported, and torch is there", exit_code=3)
    folder = libraries()
    os.environ.pop("HOLLOW_BYTES", None)  # of another device, in the process that started this one
    os.environ |= _settings(hollow, gpu, folder)
    for name in ORDER:
        for path in sorted(folder.glob(f"{name}.so.*")):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def is_open() -> bool:
    """Whether the CUDA runtime of this process is the hollow one."""
    return hasattr(ctypes.CDLL(None), "hollow_device")


def _settings(hollow: Hollow, gpu: Rates, folder: Path) -> dict[str, str]:
    """The variables that device.c reads, and those by which torch and Triton leave out what is not there."""
    known = {
        "HOLLOW_KIND": _kind(gpu),
        "HOLLOW_COUNT": str(hollow.count),
        "HOLLOW_CONTEXT_BYTES": str(hollow.context_bytes),
        "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1",  # cuDNN's attention has no plan here
        "TRITON_LIBCUDA_PATH": str(folder),
    }
    return known if hollow.bytes is None else known | {"HOLLOW_BYTES": str(hollow.bytes)}


def _kind(gpu: Rates) -> str:
    """The line that device.c takes. Raises UserError for a GPU of which the chip is not known."""
    if gpu.chip is None or gpu.compute_capability not in LIMITS:
        raise UserError(f"of {gpu.name} the chip is not known", hint="its file needs a [chip], as configs/devices/ has")
    blocks, block_kib = LIMITS[gpu.compute_capability]
    chip = gpu.chip
    numbers = (
        *gpu.compute_capability,
        chip.multiprocessors,
        chip.threads_per_multiprocessor,
        blocks,
        chip.shared_memory_bytes // 1024,
        block_kib,
        gpu.memory_bytes,
    )
    return "|".join([HOLLOW + gpu.name, *map(str, numbers)])
