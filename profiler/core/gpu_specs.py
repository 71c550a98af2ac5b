"""Memory and rates of the known GPUs, read strictly from configs/devices/WORD.toml and from the user's own files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import msgspec

from profiler.core import safe_files
from profiler.core.errors import UserError, nearest
from profiler.core.user_code import shipped

ALIASES = {
    "a100": "a100-40",
    "v100": "v100-16",
    "rtx-3060-12": "rtx-3060",
    "rtx-3080-10": "rtx-3080",
    "rtx-4070-12": "rtx-4070",
}
MAKERS = re.compile(r"nvidia|geforce|tesla|[^a-z0-9]", re.ASCII)  # what a name may be written with or without
WORD = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)  # allowed names of GPUs on the command line
HOLLOW = "Hollow "  # prefix of the name of a GPU that has memory and does no arithmetic: `profiler/rehearsal`
HOPPER = (9, 0)
SMALL_WORKSPACE = (2 * 4096 + 8 * 16) * 2**10  # ":4096:2:16:8", cuBLAS's own default in KiB
LARGE_WORKSPACE = 32 * 2**20  # recommended by NVIDIA from Hopper on

CONTEXT_BYTES = 600 * 2**20  # device memory of a process with CUDA, cuBLAS and cuDNN before its first tensor
LIBRARY_SHARE = 0.02  # fraction of a device's memory assumed for libraries, if not known

Rate = Annotated[float, msgspec.Meta(gt=0)]


class Flops(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """FLOP per second of matrix products, with PyTorch's default settings."""

    fp32: Rate  # without TF32
    fp16: Rate  # tensor cores that accumulate in fp32, without sparsity
    bf16: Rate | None = None  # None: no hardware support


class Chip(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Properties of a GPU from which PyTorch's kernels derive how much workspace they take."""

    multiprocessors: Annotated[int, msgspec.Meta(gt=0)]
    threads_per_multiprocessor: Annotated[int, msgspec.Meta(gt=0)]  # the most resident at once
    shared_memory_bytes: Annotated[int, msgspec.Meta(gt=0)]  # per multiprocessor


class Rates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The specification of one GPU."""

    name: str  # as the driver reports it
    source: str  # where the numbers are from, in words
    memory_bytes: Annotated[int, msgspec.Meta(gt=0)]  # as PyTorch reports it, less than is advertised
    bandwidth: Rate  # bytes per second
    host_bandwidth: Rate | None = None  # of the link to host memory, each way; None: not known
    flops: Flops
    compute_capability: tuple[int, int]
    chip: Chip | None = None  # None: workspaces that depend on it are not predicted


def folder() -> Path:
    """Return the folder of the files that come with gcprof."""
    return shipped("configs", "devices")


def own_folder() -> Path:
    """Return the folder of the user's own files: gcprof/devices below XDG_CONFIG_HOME, or below ~/.config."""
    root = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(root) / "gcprof" / "devices" if os.path.isabs(root) else folder()  # a user without a home


def names() -> tuple[str, ...]:
    """Return the names of all GPUs, the user's own included; `find` also accepts the aliases."""
    return tuple(sorted(_paths()))


def canonical(word: str) -> str:
    """Return the name in configs/devices that a word means: `V100` -> `v100-16`, `RTX 4090` and `4090` -> `rtx-4090`.

    A word that means none, or more than one, is returned in lower case.
    """
    name = ALIASES.get(word.lower(), word.lower())
    every = _paths()
    if name in every or not (typed := MAKERS.sub("", name)):
        return name
    meant = {ALIASES.get(one, one) for one in (*every, *ALIASES) if MAKERS.sub("", one) in (typed, f"rtx{typed}")}
    return meant.pop() if len(meant) == 1 else name


def is_known(word: str) -> bool:
    """Whether a word is a GPU by its name."""
    return canonical(word) in names()


def is_hollow(device_name: str | None) -> bool:
    """Whether a GPU of this name has memory and does no arithmetic, so that only its bytes are meaningful."""
    return device_name is not None and device_name.startswith(HOLLOW)


def find(word: str) -> Rates:
    """Return the GPU of this name. Raises UserError, with the nearest names, if there is none."""
    name = canonical(word)
    path = _paths().get(name)
    if path is None:
        hint = nearest(name, (*names(), *ALIASES)) or f"choose from {', '.join(names())}"
        raise UserError(f"no GPU is called '{word}'", hint=hint)
    return read(path)


def of_device(device_name: str) -> Rates | None:
    """Return the GPU that has this name in its driver, real or hollow; None if it is not known."""
    word = word_of(device_name)
    return find(word) if word else None


def word_of(device_name: str) -> str | None:
    """Return the command-line name of the GPU with this name in its driver, real or hollow; None if it is not known."""
    name = device_name.removeprefix(HOLLOW)
    return next((word for word in names() if find(word).name == name), None)


def read(path: Path) -> Rates:
    """Return the GPU in a file. Raises UserError with file, line and key: not TOML, an unknown key, a wrong type."""
    text, document = safe_files.load_toml(path, hint="examples are in configs/devices/")
    try:
        return msgspec.convert(document, Rates)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
        named = re.search(r"field `(\w+)`", message)
        key = named[1] if named else re.sub(r"\[.*?\]", "", place.strip("`").rpartition(".")[2])
        where = f"{path}:{safe_files.line_of(text, key)}"
        hint = (
            f"the keys are {', '.join((*Rates.__struct_fields__, *Flops.__struct_fields__, *Chip.__struct_fields__))}"
        )
        raise UserError(f"{where}: {key}: {message}", hint=hint) from None


def _paths() -> dict[str, Path]:
    """Return the file of each GPU by its name; a user's file replaces gcprof's of the same name."""
    paths = {path.stem: path for place in (folder(), own_folder()) for path in sorted(place.glob("*.toml"))}
    return {word: path for word, path in paths.items() if WORD.fullmatch(word)}


def workspace_bytes(rates: Rates) -> int:
    """Return the cuBLAS workspace that PyTorch allocates (aten/src/ATen/cuda/CublasHandlePool.cpp).

    Until early 2026 PyTorch gave Blackwell the small one.
    """
    return LARGE_WORKSPACE if rates.compute_capability >= HOPPER else SMALL_WORKSPACE
