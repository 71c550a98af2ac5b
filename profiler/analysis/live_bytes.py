"""Live bytes of a step: from a trace, at its peak by category and module, and over time; from readings, at the peak."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from profiler.core.record import Readings
from profiler.core.stats import highest
from profiler.core.trace_data import BUCKETS, GATHERED, Allocation, Trace, by_category, held_at, live

OUTSIDE = ""  # outside of all blocks: embeddings, head, loss, optimizer
BEFORE = "before"  # the phase before the step
HIDDEN = "temporaries"  # the category of what an operator takes besides its outputs
NUM_HOLDERS = 10  # how many of the largest are named

LASTING = ("parameters", "buffers", "optimizer", "inputs", BUCKETS, GATHERED)  # all of it is live when the step begins
CATEGORIES = (*LASTING, "gradients", "static", "saved", "rest")  # categories of the peak in readings


def stage_of(blocks: tuple[str, ...]) -> Callable[[str], str]:
    """Return a function from a module's full name to the block that it is or is inside; OUTSIDE if there is none."""
    stages = {"": OUTSIDE} | {block: block for block in blocks}

    def stage(module: str) -> str:
        if module not in stages:
            stages[module] = stage(module.rpartition(".")[0])
        return stages[module]

    return stage


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes under one name."""

    name: str
    nbytes: int


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """The operator at which the most bytes are live. `number` is 0 if that is before the step."""

    nbytes: int
    number: int
    phase: str  # forward, recompute, backward, optimizer
    operator: str
    module: str


def peak(trace: Trace) -> Peak:
    """Return the first operator at which the most bytes are live."""
    held = live(trace)
    number = max(range(len(held)), key=held.__getitem__)
    if number == 0:
        return Peak(nbytes=held[0], number=0, phase=BEFORE, operator="", module="")
    operator = trace.operators[number - 1]
    return Peak(
        nbytes=held[number], number=number, phase=operator.phase, operator=operator.name, module=operator.module
    )


def categories_at(trace: Trace, operator: int) -> tuple[Share, ...]:
    """Return the live bytes while an operator runs, by category, the largest first; they add up to all of them."""
    return _shares(trace, operator, of=lambda storage: storage.category, hidden=HIDDEN)


def modules_at(trace: Trace, operator: int, *, blocks: tuple[str, ...]) -> tuple[Share, ...]:
    """Return the live bytes by module: what is inside a block under the block's name, the rest under its own.

    The name is empty for what is outside of all modules.
    """
    stage = stage_of(blocks)
    at_work = trace.operators[operator - 1].module if operator else ""
    return _shares(
        trace, operator, of=lambda storage: stage(storage.module) or storage.module, hidden=stage(at_work) or at_work
    )


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """What one operator allocated for one line of code, in one category."""

    nbytes: int
    count: int  # number of allocations
    operator: str  # empty if it was allocated before the step
    line: str  # empty if no line of the user's is known
    category: str


def holders_at(trace: Trace, operator: int) -> tuple[Holder, ...]:
    """Return what holds most while an operator runs, by operator, line and category, the largest first."""
    held = held_at(trace, operator)
    return holders((storage.nbytes, storage.operator, storage.line, storage.category) for storage in held)


def holders(held: Iterable[tuple[int, str, str, str]]) -> tuple[Holder, ...]:
    """Return what holds most, the largest first, from the bytes, operator, line and category of each storage."""
    by_holder: dict[tuple[str, str, str], list[int]] = {}
    for size, operator, line, category in held:
        by_holder.setdefault((operator, line, category), []).append(size)
    grouped = [
        Holder(nbytes=sum(sizes), count=len(sizes), operator=operator, line=line, category=category)
        for (operator, line, category), sizes in by_holder.items()
    ]
    return tuple(sorted(grouped, key=lambda holder: -holder.nbytes)[:NUM_HOLDERS])


def nbytes(allocations: Iterable[Allocation]) -> int:
    """Return the sum of the bytes of allocations."""
    return sum(storage.nbytes for storage in allocations)


def _shares(trace: Trace, operator: int, *, of: Callable[[Allocation], str], hidden: str) -> tuple[Share, ...]:
    sizes: dict[str, int] = {}
    for storage in held_at(trace, operator):
        sizes[of(storage)] = sizes.get(of(storage), 0) + storage.nbytes
    if operator and trace.operators[operator - 1].hidden_bytes:
        sizes[hidden] = sizes.get(hidden, 0) + trace.operators[operator - 1].hidden_bytes
    shares = [Share(name=name, nbytes=bytes_) for name, bytes_ in sizes.items()]
    return tuple(sorted(shares, key=lambda share: (-share.nbytes, share.name)))


class LiveCurve(msgspec.Struct, frozen=True, kw_only=True):
    """The live bytes at some of a step's operators; 0 is before the step."""

    operators: tuple[int, ...]
    nbytes: dict[str, tuple[int, ...]]  # by category


def curve(trace: Trace, *, num_points: int) -> LiveCurve:
    """Return the live bytes at no more than `num_points` operators: in every stretch, where the most are live.

    So the peak is always among them.
    """
    held, categories = live(trace), by_category(trace)
    chosen = highest(held, num_points)
    return LiveCurve(
        operators=tuple(chosen),
        nbytes={category: tuple(values[at] for at in chosen) for category, values in categories.items()},
    )


def recomputes(trace: Trace) -> tuple[tuple[int, int], ...]:
    """Return the first and the last operator of every recompute.

    Views between two parts belong to one recompute: hooks make them, outside of its own mode. What runs only outside of
    all modules is none: autograd makes its first gradient in the same phase.
    """
    spans: list[tuple[int, int]] = []
    is_open = False
    for number, operator in enumerate(trace.operators, start=1):
        if operator.phase == "recompute":
            first = spans.pop()[0] if is_open else number
            spans.append((first, number))
            is_open = True
        elif operator.moved_bytes:
            is_open = False
    operators = trace.operators
    return tuple(
        (first, last) for first, last in spans if any(operator.module for operator in operators[first - 1 : last])
    )


class Composition(msgspec.Struct, frozen=True, kw_only=True):
    """The peak as a sum of three parts, in bytes."""

    static: int  # parameters, buffers, optimizer state, inputs, and the gradients that were live at the peak
    saved: int  # what the forward saves for the backward; counted as all still live, as far as it fits
    transient: int  # the rest: recomputed activations, gradients of activations, workspaces


def peak_parts(readings: Readings) -> Composition | None:
    """Split the peak so that static + saved + transient is the peak; None if a part was not measured."""
    if readings.peak_bytes is None or readings.start_bytes is None or readings.saved_bytes is None:
        return None
    static = min(readings.peak_bytes, readings.start_bytes + (readings.peak_gradient_bytes or 0))
    held = 0 if readings.peak_phase == "optimizer" else readings.saved_bytes
    saved = min(held, readings.peak_bytes - static)
    return Composition(static=static, saved=saved, transient=readings.peak_bytes - static - saved)


def largest_part(readings: Readings) -> tuple[str, int] | None:
    """Return the largest part of the peak, "static", "saved" or "transient", and its bytes; None if not measured."""
    parts = peak_parts(readings)
    sizes = {} if parts is None else {"static": parts.static, "saved": parts.saved, "transient": parts.transient}
    return max(sizes.items(), key=lambda part: part[1], default=None)


def categories(readings: Readings) -> tuple[Share, ...]:
    """Return the parts of the peak in the order of CATEGORIES, without empty ones; none if they were not measured.

    Gradients are those of this step that were live at the peak. If the static categories were not read, or do not fit
    into what was live before the step, everything static is one part.
    """
    parts = peak_parts(readings)
    if parts is None:
        return ()
    known = {name: (readings.static_bytes or {}).get(name, 0) for name in LASTING}
    known["gradients"] = min(readings.peak_gradient_bytes or 0, parts.static)
    rest = parts.static - sum(known.values())
    if rest < 0 or not readings.static_bytes:
        known, rest = {}, parts.static
    sizes = {**known, "static": rest, "saved": parts.saved, "rest": parts.transient}
    return tuple(Share(name=name, nbytes=sizes[name]) for name in CATEGORIES if sizes.get(name))
