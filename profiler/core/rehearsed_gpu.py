"""Parses the GPU that a step is rehearsed on: `rehearse:h100`, `rehearse:t4:memory=8GiB`."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from profiler.core import gpu_specs
from profiler.core.case import Choice
from profiler.core.errors import UserError
from profiler.core.gpu_kinds import REHEARSE
from profiler.core.units import MIB, bytes_text, parse_bytes, parse_memory

MOST_BYTES = 2**50
LEAST_BYTES = 2 * MIB  # the smallest request of the caching allocator to the device: kSmallBuffer
SIZES = {"memory": "bytes", "context": "context_bytes", "cudnn_workspace": "cudnn_workspace_bytes"}  # option -> field

COUNT, MOST_DEVICES = "count", 16  # MAX_DEVICES of rehearsal/hollow/hollow.h

Size = Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)]


class RehearsedGpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The devices to simulate."""

    gpu: str  # a name in configs/devices
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_DEVICES)] = 1
    bytes: Annotated[int, msgspec.Meta(ge=1, le=MOST_BYTES)] | None = None  # memory of each; None: that of the real GPU
    context_bytes: Size = 0  # of this memory, taken by the CUDA context
    cudnn_workspace_bytes: Size = 0  # workspace of each convolution


def resolve(word: str) -> str:
    """Return the device as cases have it: no alias, sizes in bytes, in the order of SIZES. Raises UserError."""
    gpu, options = gpu_of(word), Choice(word).options
    name, _, count = gpu.partition(":")
    if COUNT in options or count.isdecimal():
        hint = f"of a model, --ranks {options.get(COUNT, count)}; a command behind -- has them all"
        raise UserError(f"--device: '{word.removeprefix(REHEARSE)}' is more than one {name}", hint=hint)
    gpu_specs.find(gpu)
    if unknown := options.keys() - SIZES.keys():
        raise UserError(f"--device: '{word}' has no {min(unknown)}", hint=f"choose from {', '.join(SIZES)}")
    given = [name for name in SIZES if name in options]
    sizes = {name: parse_size(name, options[name], gpu, flag=f"--device: '{word}': {name}") for name in given}
    _check_room(gpu, memory=sizes.get("memory", gpu_specs.find(gpu).memory_bytes), context=sizes.get("context", 0))
    return str(Choice.of(REHEARSE + gpu, sizes))


def gpu_of(word: str) -> str:
    """Return the GPU's name for configs/devices, without checking it: `rehearse:H100:memory=8GiB` -> `h100`."""
    called = Choice(word).name.removeprefix(REHEARSE).lower()
    return gpu_specs.ALIASES.get(called, called)


def parse_size(name: str, text: str, gpu: str, *, flag: str) -> int:
    """Return the bytes of one of SIZES; `memory` may also be a percentage of the GPU's memory.

    A number without a unit is bytes, as records have it. Raises UserError, whose message begins with `flag`.
    """
    if re.fullmatch(r"[1-9]\d{0,18}", text, flags=re.ASCII):
        size: float = int(text)
    else:
        size = parse_memory(text, flag=flag) if name == "memory" else parse_bytes(text, flag=flag)
    if isinstance(size, float):
        size = int(size * gpu_specs.find(gpu).memory_bytes)
    if size > MOST_BYTES:
        raise UserError(f"{flag} cannot be '{text}'", hint=f"at most {bytes_text(MOST_BYTES)}")
    return int(size)


def _check_room(gpu: str, *, memory: int, context: int) -> None:
    """Raise UserError if CUDA leaves PyTorch no memory at all, so that no batch and no strategy would fit."""
    if memory - context < LEAST_BYTES:
        message = f"a rehearsed {gpu} has {bytes_text(memory)}, of which CUDA takes {bytes_text(context)}"
        hint = "PyTorch asks for 2 MiB at least; a number without a unit is bytes: 11GiB, not 11"
        raise UserError(f"{message}: nothing is left for tensors", hint=hint)


def limited(device: str, *, memory: int, context: int) -> str:
    """Return the device with this many bytes of memory, of which CUDA takes `context`."""
    choice = Choice(device)
    sizes = {**choice.options, "memory": str(memory), "context": str(context)}
    return str(Choice.of(choice.name, {name: sizes[name] for name in SIZES if name in sizes}))


def device_of(gpus: RehearsedGpu) -> str:
    """Return the device as cases have it: `rehearse:t4:count=2,memory=8589934592`."""
    sizes = {name: getattr(gpus, field) for name, field in SIZES.items()}
    count = {COUNT: gpus.count} if gpus.count > 1 else {}
    return str(Choice.of(REHEARSE + gpus.gpu, {**count, **{name: size for name, size in sizes.items() if size}}))


def several(word: str, **sizes: str | None) -> RehearsedGpu:
    """Return the GPUs that a word asks for: `t4`, `h100:8`, `rehearse:h100:count=8,memory=40GiB`.

    `sizes` are those of options of their own, which win. Raises UserError.
    """
    name, _, count = Choice(word).name.removeprefix(REHEARSE).partition(":")
    options = Choice(word).options
    counted = options.pop(COUNT, count)
    if count and counted != count:
        raise UserError(f"--device: '{word}' says two numbers of GPUs", hint=f"{name}:{count}")
    if counted and not (counted.isdecimal() and 1 <= int(counted) <= MOST_DEVICES):
        raise UserError(f"--device: '{word}' asks for {counted} GPUs", hint=f"1 to {MOST_DEVICES}: h100:8")
    given = {**options, **{size: text for size, text in sizes.items() if text is not None}}
    given = {size: text for size, text in given.items() if size == "memory" or text.rstrip("BGIKMTbgikmt") != "0"}
    one = of_device(resolve(Choice.of(REHEARSE + name, given)))
    return msgspec.structs.replace(one, count=int(counted or 1))


def of_device(device: str) -> RehearsedGpu:
    """Return what the device of a rehearsed case asks for. Raises UserError for sizes out of range."""
    choice = Choice(device)
    sizes = {SIZES.get(name, name): int(value) for name, value in choice.options.items()}
    try:
        return msgspec.convert({"gpu": choice.name.removeprefix(REHEARSE), **sizes}, RehearsedGpu)
    except msgspec.ValidationError as error:
        raise UserError(f"--device: '{device}': {error}", hint="for example rehearse:t4:memory=8GiB") from None
