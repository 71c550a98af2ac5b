"""The interface of a device, the environment that a record stores of it, and a test of its arithmetic.

`cpu` and `cuda` are a file each, whose `connect` returns a Device; `open_device` picks by the first word of its name.
"""

from __future__ import annotations

import gc
import platform
from datetime import UTC, datetime
from typing import Protocol

import msgspec
import torch

from profiler import __version__
from profiler.core import catalogue
from profiler.core.case import Case, Choice
from profiler.core.record import Conditions, Environment

TABLE = {
    "cpu": "profiler.measuring.devices.cpu:connect",
    "cuda": "profiler.measuring.devices.cuda:connect",
    "rehearse": "profiler.measuring.devices.cuda:connect",
}
MATRIX_SIZE = 16  # of the test matrices; all numbers are whole and below 2**10, so exact in every type


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes between two marks: live at its start and end, and the largest number live in between."""

    start_bytes: int
    peak_bytes: int
    end_bytes: int
    freed_bytes: int = 0  # live at the start and gone by the end, if that was asked for
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    live_bytes: tuple[int, ...] = ()  # after every event, if the device reports each


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The identity and memory of a device."""

    name: str
    total_bytes: int | None = None
    uuid: str | None = None
    driver: str | None = None


class Watch(Protocol):
    """A context manager that follows the memory. Every `mark` ends a span and begins the next."""

    def __enter__(self) -> Watch: ...
    def __exit__(self, *error: object) -> None: ...
    def mark(self, *, follow: bool = False) -> None:
        """With `follow`, the span that begins also reports what it frees."""

    def spans(self) -> list[Span]:
        """Return the spans between the marks; call it after leaving the context."""


class Stopwatch(Protocol):
    """Measures time. Every `mark` ends a span and begins the next."""

    def mark(self) -> None: ...
    def seconds(self) -> list[float]:
        """Return the seconds of the spans between the marks; waits for the device."""


class Device:
    """One device; `name` is its name in a case. What a device does not tell is None."""

    name: str
    tick_seconds: float  # the resolution of its stopwatch
    is_asynchronous = False  # whether it works while the host goes on

    @property
    def is_hollow(self) -> bool:
        """Whether it has memory and does no arithmetic, so that only bytes mean something."""
        return False

    def watch(self, resting_bytes: int) -> Watch:
        """Return a Watch; `resting_bytes` are live already, unless the device counts them itself."""
        raise NotImplementedError

    def stopwatch(self) -> Stopwatch:
        """Return a Stopwatch."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait for the device's work."""

    def release(self) -> None:
        """Free all that the last pass left, so that the next one starts as in a fresh process."""
        gc.collect()  # the last pass's model is part of reference cycles

    def keep_memory(self) -> None:
        """Keep freed memory in this process, so that a step's time does not depend on the steps before it."""

    def facts(self) -> Facts:
        """Return what the device is."""
        raise NotImplementedError

    def free_bytes(self) -> int | None:
        """Return the free bytes of the device."""
        return None

    def held_bytes(self) -> int | None:
        """Return the bytes held by this process's tensors, if the allocator counts them."""
        return None

    def conditions(self) -> Conditions:
        """Return the state of the device now."""
        raise NotImplementedError

    def untold(self) -> str | None:
        """Return why `conditions` is incomplete; None if it is complete."""
        return None


def versions() -> Environment:
    """Return an environment with the versions of this process, without a device."""
    return Environment(
        gcprof=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        torch=torch.__version__,
    )


def environment(device: Device) -> Environment:
    """Return the versions and the device, as this process sees them."""
    facts = device.facts()
    return msgspec.structs.replace(
        versions(),
        cuda=torch.version.cuda,
        driver=facts.driver,
        device_name=facts.name,
        device_bytes=facts.total_bytes,
        device_uuid=facts.uuid,
        num_threads=torch.get_num_threads(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def open_device(name: str) -> Device:
    """Open the device of that name: `cpu`, `cuda:0`."""
    connect, _ = catalogue.load(Choice(name.partition(":")[0]), TABLE)
    device: Device = connect(name)
    return device


def of_rank(case: Case, rank: int) -> Case:
    """Return the case on the rank's own device: ranks take consecutive devices, starting with the case's."""
    kind, _, first = case.device.partition(":")
    is_next = rank > 0 and kind == "cuda"  # a GPU that is named by its kind has no further ranks
    return msgspec.structs.replace(case, device=f"{kind}:{int(first or 0) + rank}") if is_next else case


def wrong_arithmetic(device: str) -> str | None:
    """Return what the device computes wrongly, in a sentence; None where every number is right."""
    places = range(MATRIX_SIZE)
    left = [[(3 * row + column) % 5 - 2 for column in places] for row in places]
    right = [[(row + 2 * column) % 7 - 3 for column in places] for row in places]
    product = [
        sum(a * b for a, b in zip(row, column, strict=True)) for row in left for column in zip(*right, strict=True)
    ]
    gradient = [sum(row) for _ in left for row in right]  # of the product's sum with respect to the left matrix

    weights = torch.tensor(left, dtype=torch.float32, device=device, requires_grad=True)  # (row, inner)
    computed = weights @ torch.tensor(right, dtype=torch.float32, device=device)  # (row, column)
    computed.sum().backward()
    assert weights.grad is not None, "it is a leaf that needs one"
    numbers = [*computed.flatten().tolist(), *weights.grad.flatten().tolist()]
    num_right = sum(number == expected for number, expected in zip(numbers, [*product, *gradient], strict=True))
    if num_right == len(numbers):
        return None
    text = f"{num_right} of {len(numbers)} numbers of a small product and its gradient are right"
    return f"it computes nothing, or nothing right: {text}; its times and gradients mean nothing"
