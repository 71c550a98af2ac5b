"""Known GPUs from configs/devices and the user's own files; devices in words: `cuda:0`, `fake:h100`, `rehearse:t4`."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec

from profiler.core import safe_files
from profiler.core.errors import UserError, nearest, shipped
from profiler.core.units import MIB, Choice, bytes_text, parse_bytes, parse_memory, split_choices

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

CUDA = "cuda:"
FAKE = "fake:"  # prefix of a device that is predicted for, and need not exist
REHEARSE = "rehearse:"  # prefix of a device that is rehearsed: PyTorch's own CUDA code runs without a GPU
KIND = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*", re.ASCII)  # never a bare number, which is a GPU's index
SIZES = {"memory": "bytes", "context": "context_bytes", "cudnn_workspace": "cudnn_workspace_bytes"}  # option -> field
MOST_BYTES = 2**43  # each stream of expandable segments reserves 9/8 of it, of 2**47 addresses
LEAST_BYTES = 2 * MIB  # the smallest request of the caching allocator to the device: kSmallBuffer
MOST_DEVICES = 16  # MAX_DEVICES of rehearsal/hollow/hollow.h

Size = Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)]


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
    keys = ", ".join((*Rates.__struct_fields__, *Flops.__struct_fields__, *Chip.__struct_fields__))
    return safe_files.converted(document, Rates, path=path, text=text, hint=f"the keys are {keys}")


def _paths() -> dict[str, Path]:
    """Return the file of each GPU by its name; a user's file replaces gcprof's of the same name."""
    paths = {path.stem: path for place in (folder(), own_folder()) for path in sorted(place.glob("*.toml"))}
    return {word: path for word, path in paths.items() if WORD.fullmatch(word)}


def workspace_bytes(rates: Rates) -> int:
    """Return the cuBLAS workspace that PyTorch allocates (aten/src/ATen/cuda/CublasHandlePool.cpp).

    Until early 2026 PyTorch gave Blackwell the small one.
    """
    return LARGE_WORKSPACE if rates.compute_capability >= HOPPER else SMALL_WORKSPACE


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device of a case, or the GPUs that a command is rehearsed on. Its text is what cases and records hold."""

    name: str  # cpu, cuda, cuda:0, cuda:a100; of a GPU that is not here its name in configs/devices
    prefix: str = ""  # FAKE or REHEARSE; "" if it is measured on
    # of rehearsed GPUs
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_DEVICES)] = 1
    bytes: Annotated[int, msgspec.Meta(ge=1, le=MOST_BYTES)] | None = None  # memory of each; None: that of the real GPU
    context_bytes: Size | None = None  # of this memory, taken by the CUDA context; None: 0
    cudnn_workspace_bytes: Size | None = None  # workspace of each convolution; None: not set

    def __str__(self) -> str:
        sizes = {option: getattr(self, field) for option, field in SIZES.items()}
        options = {"count": None if self.count == 1 else self.count, **sizes}
        return str(Choice.of(self.prefix + self.name, {key: size for key, size in options.items() if size is not None}))

    @property
    def is_predicted(self) -> bool:
        return self.prefix == FAKE

    @property
    def is_rehearsed(self) -> bool:
        """Whether a step runs PyTorch's own CUDA code on a device that does no arithmetic."""
        return self.prefix == REHEARSE

    @property
    def kind(self) -> str | None:
        """The kind of GPU to measure on: `a100` of `cuda:a100`; None for all others."""
        return None if self.prefix else _kind(self.name)

    @property
    def torch_device(self) -> str:
        """Torch's device in the worker: `cuda:0` for a GPU kind, `cuda` or a rehearsed GPU; "cpu" for a prediction."""
        if self.is_predicted:
            return "cpu"
        return f"{CUDA}0" if self.is_rehearsed or self.kind or self.name == "cuda" else self.name

    @property
    def twin(self) -> str:
        """What a device and its prediction share: `cpu`, `cuda:a100`, or `cuda` for every other GPU."""
        return self.name if self.name == "cpu" or _kind(self.name) else "cuda"

    @property
    def foreseen(self) -> Device:
        """The device that predicts this one: the GPU that is rehearsed, else its kind of device."""
        return self if self.is_predicted else Device(prefix=FAKE, name=self.name if self.is_rehearsed else self.twin)

    def accepts(self, name: str) -> bool:
        """Whether a GPU of this name in its driver is of the kind, if any: each part is a word, `80g` also as `80gb`.

        Whole words are compared, since an L40 is not an L4.
        """
        words = set(re.split(r"[^a-z0-9]+", name.lower()))
        return self.kind is None or all({piece, f"{piece}b"} & words for piece in re.split("[-_]", self.kind))


def _kind(name: str) -> str | None:
    kind = name.removeprefix(CUDA)
    return kind if name.startswith(CUDA) and KIND.fullmatch(kind) else None


@lru_cache(maxsize=1024)
def parse(text: str) -> Device:
    """Return the device that a case's text names. A file may contain anything: what is no size is part of the name."""
    prefix = next((prefix for prefix in (FAKE, REHEARSE) if text.startswith(prefix)), "")
    name = text.removeprefix(prefix)
    if prefix == REHEARSE and "=" in name:
        choice = Choice(name)
        with suppress(UserError, ValueError, msgspec.ValidationError):
            sizes = {SIZES.get(option, option): int(size) for option, size in choice.options.items()}
            return msgspec.convert({**sizes, "name": choice.name, "prefix": prefix}, Device)
    return Device(name=name, prefix=prefix)


def rehearsed(word: str, **sizes: str | None) -> Device:
    """Return the GPUs that a user's word asks for: `t4`, `h100:8`, `rehearse:h100:count=8,memory=40GiB`.

    `sizes` are those of options of their own, which win. Raises UserError.
    """
    choice = Choice(word.removeprefix(REHEARSE))
    called, _, count = choice.name.partition(":")
    options = choice.options
    counted = options.pop("count", count)
    if count and counted != count:
        raise UserError(f"--device: '{word}' says two numbers of GPUs", hint=f"{called}:{count}")
    if counted and not (counted.isdecimal() and 1 <= int(counted) <= MOST_DEVICES):
        raise UserError(f"--device: '{word}' asks for {counted} GPUs", hint=f"1 to {MOST_DEVICES}: h100:8")
    gpu = find(called)
    options |= {option: size for option, size in sizes.items() if size is not None}
    if unknown := options.keys() - SIZES.keys():
        raise UserError(f"--device: '{word}' has no {min(unknown)}", hint=f"choose from {', '.join(SIZES)}")
    read = {
        SIZES[option]: _size(option, text, gpu, flag=f"--device: '{word}': {option}")
        for option, text in options.items()
        if option == "memory" or text.rstrip("BGIKMTbgikmt") != "0"
    }
    memory, context = read.get("bytes", gpu.memory_bytes), read.get("context_bytes", 0)
    if memory - context < LEAST_BYTES:  # no batch and no strategy would fit
        message = f"a rehearsed {called} has {bytes_text(memory)}, of which CUDA takes {bytes_text(context)}"
        alone = "; --context 0 is for tensors alone" if context else ""
        hint = f"PyTorch asks for 2 MiB at least; a number without a unit is bytes: 11GiB, not 11{alone}"
        raise UserError(f"{message}: nothing is left for tensors", hint=hint)
    return msgspec.convert({**read, "prefix": REHEARSE, "name": canonical(called), "count": int(counted or 1)}, Device)


def absent(word: str) -> Device:
    """Return the device of a case that is to be rehearsed or predicted for. Raises UserError if it is not known."""
    if word.startswith(REHEARSE):
        device = rehearsed(word)
        if device.count > 1:
            hint = f"of a model, --ranks {device.count}; a command behind -- has them all"
            raise UserError(f"--device: '{word.removeprefix(REHEARSE)}' is more than one {device.name}", hint=hint)
        return device
    known = ("cpu", "cuda", *names())
    name = canonical(word.removeprefix(FAKE))
    if name not in known:
        hint = nearest(name, known, before=f"--device {FAKE}") or f"choose from {', '.join(known)}"
        raise UserError(f"--device: nothing is known of '{word.removeprefix(FAKE)}'", hint=hint)
    return Device(prefix=FAKE, name=name)


def to_predict(text: str) -> str:
    """`h100,fake:t4` -> `fake:h100,fake:t4`: the devices of a command that only predicts."""
    return ",".join(word if word.startswith(FAKE) else FAKE + word for word in text.split(","))


def to_rehearse(text: str, **sizes: str | None) -> str:
    """`h100,rehearse:t4` -> `rehearse:h100,rehearse:t4`, each with the sizes that are given. Raises UserError."""
    given = {option: size for option, size in sizes.items() if size is not None}
    choices = [Choice(word.removeprefix(REHEARSE).removeprefix(FAKE)) for word in split_choices(text)]
    for option, size in given.items():
        for choice in choices:
            gpu = find(choice.name.partition(":")[0])
            _size(option, size, gpu, flag=f"--{option.replace('_', '-')}")
    return ",".join(Choice.of(REHEARSE + choice.name, {**choice.options, **given}) for choice in choices)


def _size(option: str, text: str, gpu: Rates, *, flag: str) -> int:
    """Return the bytes of one of SIZES; `memory` may also be a percentage of the GPU's memory.

    A number without a unit is bytes, as records have it. Raises UserError, whose message begins with `flag`.
    """
    if re.fullmatch(r"[1-9]\d{0,18}", text, flags=re.ASCII):
        size: float = int(text)
    else:
        size = parse_memory(text, flag=flag) if option == "memory" else parse_bytes(text, flag=flag)
    if isinstance(size, float):
        size = int(size * gpu.memory_bytes)
    if size > MOST_BYTES:
        raise UserError(f"{flag} cannot be '{text}'", hint=f"at most {bytes_text(MOST_BYTES)}")
    return int(size)
