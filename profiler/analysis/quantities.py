"""The table of quantities for comparing published figures with ours.

A quantity is one line here, and one function of the rows that a figure is about and of all rows of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

import msgspec

from profiler.analysis.growth_fit import exponent
from profiler.analysis.rows import Row
from profiler.core.case import Case

Value = int | float | str | None  # None if it was not measured
Read = Callable[[Sequence[Row], Sequence[Row]], Value]  # from the chosen rows, and all rows
FLOAT_BYTES = 4
UNITS = {
    "bytes": {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "M": 2.0**20, "MB": 1e6, "GB": 1e9},
    "seconds": {"s": 1.0, "ms": 1e-3, "us": 1e-6},
    "change": {"%": 0.01},
    "share": {"%": 0.01},
    "number": {"": 1.0},
    "words": {"": 1.0},
}
GRADIENTS = {"bit-equal": "equal", "within noise": "equal but for rounding", "missing": "missing", "differ": "differ"}
SAVED, PEAK = attrgetter("readings.saved_bytes"), attrgetter("readings.peak_bytes")


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table: the name of a quantity, the kind of its units, and how it is read."""

    about: str
    kind: str  # a key of UNITS
    read: Read
    sampled: bool = False  # from times, which have a spread


def of_one(read: Callable[[Row], Value]) -> Read:
    return lambda chosen, rows: read(chosen[0])


def against_none(read: Callable[[Row], int | None]) -> Read:
    """Return a reader of the change relative to the same case without checkpointing: -0.6 is 60 % less.

    The change is None if either is not ok.
    """

    def change(chosen: Sequence[Row], rows: Sequence[Row]) -> Value:
        mine, none = _read_pair(read, chosen, rows)
        return None if mine is None or not none else mine / none - 1

    return change


def share_of_saving(read: Callable[[Row], int | None]) -> Read:
    """Return a reader of the share of the largest saving, among the strategies that differ only in `k`.

    The share is None if the row or the baseline is not ok.
    """

    def share(chosen: Sequence[Row], rows: Sequence[Row]) -> Value:
        mine, none = _read_pair(read, chosen, rows)
        family = _family(chosen[0].case)
        peers = [read(peer) for peer in rows if peer.outcome == "ok" and _family(peer.case) == family]
        smallest = min((value for value in peers if value is not None), default=None)
        if none is None or mine is None or smallest is None or none <= smallest:
            return None
        return (none - mine) / (none - smallest)

    return share


def growth(read: Callable[[Row], float | None]) -> Read:
    """Return a reader of the exponent of a quantity's growth with the number of blocks."""

    def fitted(chosen: Sequence[Row], rows: Sequence[Row]) -> Value:
        points = [(row.built.num_blocks, read(row)) for row in chosen if row.built and row.outcome == "ok"]
        measured = [(size, value) for size, value in points if value is not None]
        return exponent([size for size, _ in measured], [value for _, value in measured])

    return fitted


def baseline(row: Row, rows: Sequence[Row]) -> Row | None:
    """Return the row of the same case without checkpointing; None if there is none."""
    return next((candidate for candidate in rows if candidate.case == row.case.baseline), None)


def _pair(chosen: Sequence[Row], rows: Sequence[Row]) -> tuple[Row, Row | None]:
    return chosen[0], baseline(chosen[0], rows)


def _read_pair(
    read: Callable[[Row], int | None], chosen: Sequence[Row], rows: Sequence[Row]
) -> tuple[int | None, int | None]:
    """Return the value of the row and of the same case without checkpointing; None for a row that is not ok."""
    mine, none = (read(row) if row and row.outcome == "ok" else None for row in _pair(chosen, rows))
    return mine, none


def _family(case: Case) -> tuple[Case, str, tuple[tuple[str, str], ...]]:
    options = tuple((key, value) for key, value in case.strategy.options.items() if key != "k")
    return case.baseline, case.strategy.name, options


def _saved_but_loss(row: Row) -> int | None:
    """Return the saved bytes without the loss, a scalar that is counted in them but not kept for the backward."""
    return None if row.readings.saved_bytes is None else row.readings.saved_bytes - FLOAT_BYTES


def _forward_peak(row: Row) -> int | None:
    return row.readings.phases["forward"].allocated if row.readings.phases else None


def _static(category: str) -> Callable[[Row], int | None]:
    return lambda row: row.readings.static_bytes[category] if row.readings.static_bytes else None


def _optimizer_ratio(row: Row) -> float | None:
    static = row.readings.static_bytes
    return static["optimizer"] / static["parameters"] if static and static["parameters"] else None


def _time_change(chosen: Sequence[Row], rows: Sequence[Row]) -> Value:
    """Return the relative change of the step time; None without a time, or if the baseline is not ok."""
    row, none = _pair(chosen, rows)
    return None if row.time_ratio is None or none is None or none.outcome != "ok" else row.time_ratio - 1


def _forward_calls(row: Row) -> int | None:
    return sum(row.readings.block_calls) if row.readings.block_calls else None


def _calls_by_layer(row: Row) -> str | None:
    return " ".join(map(str, row.readings.block_calls)) if row.readings.block_calls else None


def _live_activations(row: Row) -> int | None:
    """Return how many whole activations of a dense-chain of one width the forward leaves live."""
    layer_bytes = activation_bytes(row.case)
    return None if layer_bytes is None or row.readings.saved_bytes is None else row.readings.saved_bytes // layer_bytes


def _peak_activations(row: Row) -> int | None:
    """Return how many whole activations and gradients of activations are live at the peak besides static bytes."""
    layer_bytes, readings = activation_bytes(row.case), row.readings
    if (
        layer_bytes is None
        or readings.peak_bytes is None
        or readings.start_bytes is None
        or readings.peak_gradient_bytes is None
    ):
        return None
    return (readings.peak_bytes - readings.start_bytes - readings.peak_gradient_bytes) // layer_bytes


def activation_bytes(case: Case) -> int | None:
    """Return the bytes of a layer's output in an fp32 dense-chain of one width; None for any other model."""
    widths = set(case.model.options.get("widths", "").split("+"))
    if case.model.name != "dense-chain" or len(widths) != 1 or case.precision != "fp32":
        return None
    (width,) = widths
    return FLOAT_BYTES * int(width) * case.batch_size if width.isdigit() and case.batch_size else None


TABLE = {
    "saved_bytes": Quantity(about="saved", kind="bytes", read=of_one(SAVED)),
    "saved_but_loss": Quantity(about="saved, without the loss itself", kind="bytes", read=of_one(_saved_but_loss)),
    "forward_peak_bytes": Quantity(about="forward peak", kind="bytes", read=of_one(_forward_peak)),
    "peak_bytes": Quantity(about="step peak", kind="bytes", read=of_one(PEAK)),
    "saved_change": Quantity(about="saved, against none", kind="change", read=against_none(SAVED)),
    "forward_peak_change": Quantity(
        about="forward peak, against none", kind="change", read=against_none(_forward_peak)
    ),
    "peak_change": Quantity(about="step peak, against none", kind="change", read=against_none(PEAK)),
    "saved_share": Quantity(about="saved, share of the saving", kind="share", read=share_of_saving(SAVED)),
    "forward_peak_share": Quantity(
        about="forward peak, share of the saving", kind="share", read=share_of_saving(_forward_peak)
    ),
    "peak_share": Quantity(about="step peak, share of the saving", kind="share", read=share_of_saving(PEAK)),
    "static_bytes": Quantity(about="static", kind="bytes", read=of_one(lambda row: row.static_bytes)),
    "parameter_bytes": Quantity(about="parameters", kind="bytes", read=of_one(_static("parameters"))),
    "gradient_bytes": Quantity(about="gradients", kind="bytes", read=of_one(_static("gradients"))),
    "optimizer_bytes": Quantity(about="optimizer state", kind="bytes", read=of_one(_static("optimizer"))),
    "optimizer_ratio": Quantity(about="optimizer state / parameters", kind="number", read=of_one(_optimizer_ratio)),
    "step_seconds": Quantity(about="step", kind="seconds", read=of_one(lambda row: row.step_seconds), sampled=True),
    "time_change": Quantity(about="step, against none", kind="change", read=_time_change, sampled=True),
    "forward_calls": Quantity(about="forward computations", kind="number", read=of_one(_forward_calls)),
    "calls_by_layer": Quantity(about="forward computations of each layer", kind="words", read=of_one(_calls_by_layer)),
    "live_activations": Quantity(
        about="activations live after the forward", kind="number", read=of_one(_live_activations)
    ),
    "peak_activations": Quantity(
        about="activations and their gradients live at the peak", kind="number", read=of_one(_peak_activations)
    ),
    "gradients": Quantity(about="gradients", kind="words", read=of_one(lambda row: GRADIENTS.get(row.gradients))),
    "precision_difference": Quantity(
        about="largest relative difference of a gradient to fp32",
        kind="number",
        read=of_one(lambda row: row.equality.precision_difference if row.equality else None),
    ),
    "saved_growth": Quantity(about="saved ~ blocks to the power of", kind="number", read=growth(SAVED)),
    "peak_growth": Quantity(about="step peak ~ blocks to the power of", kind="number", read=growth(PEAK)),
    "time_growth": Quantity(
        about="step ~ blocks to the power of", kind="number", read=growth(lambda row: row.step_seconds)
    ),
}  # fmt: skip
