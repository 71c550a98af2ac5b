"""Devices in words: `cpu`, `cuda:0`, a kind `cuda:a100`, `fake:h100` to predict for, `rehearse:t4:memory=8GiB`."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache
from typing import Annotated

import msgspec

from profiler.core import gpu_specs
from profiler.core.choices import Choice, split_choices
from profiler.core.errors import UserError, nearest
from profiler.core.units import MIB, bytes_text, parse_bytes, parse_memory

CUDA = "cuda:"
FAKE = "fake:"  # prefix of a device that is predicted for, and need not exist
REHEARSE = "rehearse:"  # prefix of a device that is rehearsed: PyTorch's own CUDA code runs without a GPU
KIND = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*", re.ASCII)  # never a bare number, which is a GPU's index
SIZES = {"memory": "bytes", "context": "context_bytes", "cudnn_workspace": "cudnn_workspace_bytes"}  # option -> field
MOST_BYTES = 2**43  # each stream of expandable segments reserves 9/8 of it, of 2**47 addresses
LEAST_BYTES = 2 * MIB  # the smallest request of the caching allocator to the device: kSmallBuffer
MOST_DEVICES = 16  # MAX_DEVICES of rehearsal/hollow/hollow.h

Size = Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)]


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
    gpu = gpu_specs.find(called)
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
    return msgspec.convert(
        {**read, "prefix": REHEARSE, "name": gpu_specs.canonical(called), "count": int(counted or 1)}, Device
    )


def absent(word: str) -> Device:
    """Return the device of a case that is to be rehearsed or predicted for. Raises UserError if it is not known."""
    if word.startswith(REHEARSE):
        device = rehearsed(word)
        if device.count > 1:
            hint = f"of a model, --ranks {device.count}; a command behind -- has them all"
            raise UserError(f"--device: '{word.removeprefix(REHEARSE)}' is more than one {device.name}", hint=hint)
        return device
    names = ("cpu", "cuda", *gpu_specs.names())
    name = gpu_specs.canonical(word.removeprefix(FAKE))
    if name not in names:
        hint = nearest(name, names, before=f"--device {FAKE}") or f"choose from {', '.join(names)}"
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
            gpu = gpu_specs.find(choice.name.partition(":")[0])
            _size(option, size, gpu, flag=f"--{option.replace('_', '-')}")
    return ",".join(Choice.of(REHEARSE + choice.name, {**choice.options, **given}) for choice in choices)


def _size(option: str, text: str, gpu: gpu_specs.Rates, *, flag: str) -> int:
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
