"""What the known GPUs hold and do in a second: configs/devices/WORD.toml and the user's own, read strictly."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import msgspec

from profiler.core import strict_files
from profiler.core.errors import UserError, nearest
from profiler.core.gpu_kinds import HOLLOW
from profiler.core.user_code import shipped

ALIASES = {"v100": "v100-16", "rtx-3060-12": "rtx-3060", "rtx-3080-10": "rtx-3080", "rtx-4070-12": "rtx-4070"}
WORD = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)  # what a GPU may be called on the command line
HOPPER = (9, 0)
SMALL_WORKSPACE = (2 * 4096 + 8 * 16) * 2**10  # ":4096:2:16:8", cuBLAS's own default in KiB
LARGE_WORKSPACE = 32 * 2**20  # what NVIDIA recommends from Hopper on

CONTEXT_BYTES = 600 * 2**20  # what a process with CUDA, cuBLAS and cuDNN takes of a device before the first tensor
LIBRARY_SHARE = 0.02  # of a device's memory: what libraries may take for themselves besides, where nothing tells

Rate = Annotated[float, msgspec.Meta(gt=0)]


class Flops(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """FLOP a second of matrix products, as PyTorch runs them by default."""

    fp32: Rate  # without TF32
    fp16: Rate  # tensor cores that add up in fp32, without sparsity
    bf16: Rate | None = None  # None: it has no units for it


class Chip(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The numbers of a GPU by which PyTorch's kernels choose how much memory they take besides their results."""

    multiprocessors: Annotated[int, msgspec.Meta(gt=0)]
    threads_per_multiprocessor: Annotated[int, msgspec.Meta(gt=0)]  # the most that are resident at once
    shared_memory_bytes: Annotated[int, msgspec.Meta(gt=0)]  # of one multiprocessor


class Rates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU."""

    name: str  # as its driver reports it
    source: str  # in words
    memory_bytes: Annotated[int, msgspec.Meta(gt=0)]  # what PyTorch finds, less than is sold
    bandwidth: Rate  # bytes a second
    flops: Flops
    compute_capability: tuple[int, int]
    chip: Chip | None = None  # None: what kernels take besides their results is not foreseen where it depends on these


def folder() -> Path:
    """The folder of the files that come with gcprof."""
    return shipped("configs", "devices")


def own_folder() -> Path:
    """Returns the folder of the user's own files: gcprof/devices below XDG_CONFIG_HOME, or below ~/.config."""
    root = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(root) / "gcprof" / "devices" if os.path.isabs(root) else folder()  # a user without a home has none


def names() -> tuple[str, ...]:
    """Every GPU once, the user's own too; `find` knows the aliases besides."""
    return tuple(sorted(_paths()))


def find(word: str) -> Rates:
    """The GPU that is called so. Raises UserError, naming the nearest, where there is none."""
    name = ALIASES.get(word.lower(), word.lower())
    path = _paths().get(name)
    if path is None:
        hint = nearest(name, (*names(), *ALIASES)) or f"choose from {', '.join(names())}"
        raise UserError(f"no GPU is called '{word}'", hint=hint)
    return read(path)


def of_device(device_name: str) -> Rates | None:
    """The GPU of this name, real or hollow, as its driver tells it; None where it is not known."""
    word = word_of(device_name)
    return find(word) if word else None


def word_of(device_name: str) -> str | None:
    """The word on the command line for a GPU of this name, real or hollow; None where it is not known."""
    name = device_name.removeprefix(HOLLOW)
    return next((word for word in names() if find(word).name == name), None)


def read(path: Path) -> Rates:
    """Raises UserError with file, line and key for what cannot be read: not TOML, an unknown key, a wrong type."""
    text, document = strict_files.load_toml(path, hint="examples are in configs/devices/")
    try:
        return msgspec.convert(document, Rates)
    except msgspec.ValidationError as error:
        raise _refused(path, text, error) from None


def _paths() -> dict[str, Path]:
    """The file of each GPU by its word; a user's own file replaces one of gcprof's of the same name."""
    paths = {path.stem: path for place in (folder(), own_folder()) for path in sorted(place.glob("*.toml"))}
    return {word: path for word, path in paths.items() if WORD.fullmatch(word)}


def workspace_bytes(rates: Rates) -> int:
    """What PyTorch gives cuBLAS (aten/src/ATen/cuda/CublasHandlePool.cpp); until early 2026 Blackwell had the small."""
    return LARGE_WORKSPACE if rates.compute_capability >= HOPPER else SMALL_WORKSPACE


def _refused(path: Path, text: str, error: msgspec.ValidationError) -> UserError:
    message, _, place = str(error).partition(" - at ")
    named = re.search(r"(unknown |required )field `(\w+)`", message)
    key = named[2] if named else re.sub(r"\[.*?\]", "", place.strip("`").rpartition(".")[2])
    where = f"{path}:{strict_files.line_of(text, key)}"
    if named and named[1] == "unknown ":
        allowed = (*Rates.__struct_fields__, *Flops.__struct_fields__, *Chip.__struct_fields__)
        hint = nearest(key, allowed) or f"the keys are {', '.join(allowed)}"
        return UserError(f"{where}: no key is called '{key}'", hint=hint)
    return UserError(f"{where}: {key}: {message}", hint="examples are in configs/devices/")
