"""Opens the hollow CUDA device in this process, before torch is imported."""

from __future__ import annotations

import ctypes
import os
import sys

import msgspec

from profiler.core import gpu_specs
from profiler.core.errors import UserError
from profiler.core.gpu_specs import HOLLOW, REHEARSE, Device, Rates
from profiler.core.units import bytes_text
from profiler.rehearsal import build, loader
from profiler.rehearsal.smoke import proven_libraries

ASKED = "GCPROF_HOLLOW"  # the environment variable that asks for it: `h100`, or `t4,count=2,bytes=4294967296`
# the least and the greatest error of convolutional peaks, as fractions, with cuDNN's plans and without workspaces:
# 16 published figures (docs/tables/published-memory.md) under torch 2.9, 2.11 and 2.15, 35 steps of an H100 (h100.md)
PLANNED_OFF, UNPLANNED_OFF = (-0.1, 0.012), (-0.415, 0.006)
# by compute capability: the most blocks that a multiprocessor holds at once, and the KiB of shared memory that a block
# may ask for. Source: CUDA C++ Programming Guide, technical specifications per compute capability
LIMITS = {
    (7, 0): (32, 96), (7, 5): (16, 64), (8, 0): (32, 163), (8, 6): (16, 99), (8, 9): (24, 99), (9, 0): (32, 227),
    (10, 0): (32, 227), (12, 0): (24, 99),
}  # fmt: skip


def parse(text: str) -> Device:
    """Return the devices that `t4,count=2,bytes=4294967296` names. Raises UserError for any other form."""
    gpu, *settings = text.split(",")
    pairs = dict(setting.partition("=")[::2] for setting in settings)
    try:
        return msgspec.convert({**pairs, "name": gpu, "prefix": REHEARSE}, Device, strict=False)
    except msgspec.ValidationError as error:
        raise UserError(f"{ASKED}: '{text}': {error}", hint="for example h100, or t4,count=2") from None


def prepare_if_asked() -> None:
    """Build the libraries that `open_if_asked` will load in another process.

    Raises UserError for everything that would stop it there: a malformed request, an unknown GPU, a failed build.
    """
    if text := os.environ.get(ASKED):
        try:
            _kind(gpu_specs.find(parse(text).name))
        except UserError as error:
            said = error.message if error.message.startswith(ASKED) else f"{ASKED}: {error.message}"
            raise UserError(said, hint=error.hint, exit_code=error.exit_code) from None
        proven_libraries()


def open_if_asked() -> None:
    """Make torch see the hollow devices that the environment asks for, if any, in this process and its children.

    Raises UserError where the libraries cannot be built, or where torch is imported already.
    """
    if text := os.environ.get(ASKED):
        choose_devices(parse(text))
        load()


def load() -> None:
    """Load the libraries for the installed torch, built and tested, into this process, whose children `choose` GPUs.

    Raises UserError if these cannot be built or fail the test, or if torch is imported already.
    """
    if "torch" in sys.modules and not is_open():
        raise UserError("torch is imported already: a hollow device must be opened before it", exit_code=3)
    folder, verdict = proven_libraries()
    os.environ["HOLLOW_ARCHS"] = verdict.archs
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # workers of torch 2.11 find no device
    loader.load(build.installed().origin, str(folder))


def choose(device: str) -> None:
    """Make the GPU of a rehearsed case the one that torch sees in this process, which has not used CUDA yet."""
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # it names real GPUs
    choose_devices(gpu_specs.parse(device))


def is_open() -> bool:
    """Whether the CUDA runtime of this process is the hollow one."""
    return hasattr(ctypes.CDLL(None), "hollow_device")


def convolutions() -> str:
    """Return in words whose workspaces the convolutions of this process had, and how far such peaks may be off.

    Empty where cuDNN was asked for none.
    """
    libraries, given = ctypes.CDLL(None), int(os.environ["HOLLOW_CUDNN_WORKSPACE"])
    if not libraries.hollow_num_workspaces():
        return f"cuDNN ran no convolution, so that its workspace of {bytes_text(given)} has no effect" if given else ""
    if given:
        return ""
    if libraries.hollow_asks_cudnn():
        version = libraries.cudnnGetVersion()  # 92600 of 9.26.0
        planned, off = f"as cuDNN {version // 10000}.{version // 100 % 100} plans them", PLANNED_OFF
    else:
        planned, off = "0", UNPLANNED_OFF
    below, above = (f"{error:+.1%}".replace("%", " %") for error in off)
    return f"workspaces of convolutions are {planned}: peaks of real GPUs were missed by {below} to {above}"


def choose_devices(gpus: Device) -> None:
    """Set the variables that the libraries read at the first use of CUDA. Raises UserError for a GPU without a chip."""
    os.environ.pop("HOLLOW_BYTES", None)  # the process that started this one may have chosen others
    os.environ.update(variables(gpus))


def variables(gpus: Device) -> dict[str, str]:
    """Return what tells the libraries of these devices. Raises UserError for a GPU without a chip."""
    size = {} if gpus.bytes is None else {"HOLLOW_BYTES": str(gpus.bytes)}
    return {
        "HOLLOW_KIND": _kind(gpu_specs.find(gpus.name)),
        "HOLLOW_COUNT": str(gpus.count),
        "HOLLOW_CONTEXT_BYTES": str(gpus.context_bytes or 0),
        "HOLLOW_CUDNN_WORKSPACE": str(gpus.cudnn_workspace_bytes or 0),
        **size,
    }


def _kind(gpu: Rates) -> str:
    """Return HOLLOW_KIND as device.c parses it. Raises UserError for a GPU without a [chip]."""
    if gpu.chip is None or gpu.compute_capability not in LIMITS:
        raise UserError(f"the chip of {gpu.name} is not known", hint="its file needs a [chip], as in configs/devices/")
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
