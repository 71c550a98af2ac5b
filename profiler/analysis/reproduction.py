"""Compares published figures with ours: the quantities that they are of, and how rows are read for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from profiler.analysis.axes import exponent
from profiler.analysis.rows import TABLE as COLUMNS
from profiler.analysis.rows import Row
from profiler.core.case import Case, Choice
from profiler.core.record import Environment

Value = int | float | str | None  # None if it was not measured
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


class PublishedFigure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published figure, and the settings of the rows to compare it with; None allows any."""

    label: str
    quantity: str  # a key of TABLE
    published: int | float | str | None = None  # a number, or words if the source gives none; None: it does not say
    arithmetic: bool = False  # derived by counting, not given by the source
    unit: str = ""
    note: str | None = None
    model: Choice | None = None
    strategy: Choice | None = None
    optimizer: Choice | None = None
    precision: str | None = None
    batch_size: int | None = None
    accumulate: int | None = None

    def chooses(self, case: Case) -> bool:
        """Whether this figure is about a case."""
        keys = ("model", "strategy", "optimizer", "precision", "batch_size", "accumulate")
        return all(getattr(self, key) in (None, getattr(case, key)) for key in keys)


class ComparedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A published figure and ours, in the published unit."""

    what: str
    kind: str
    unit: str
    published: int | float | str | None
    arithmetic: bool
    ours: Value
    reason: str | None = None  # why there is no number of ours, or why it may not be trusted
    note: str | None = None
    other_size: bool = False  # ours is of a reduced model, so that the two cannot be compared
    spread: float | None = None  # relative spread of a time: within the rounds or between them, whichever is larger
    difference: float | None = None  # ours minus the published, in the unit; None if they cannot be compared
    relative: float | None = None  # `difference` over the published


class Reproduction(msgspec.Struct, frozen=True, kw_only=True):
    """The published figures of one system, compared with one run of ours."""

    name: str
    title: str
    source: str
    unsaid: tuple[str, ...]
    reduced: str | None  # what was reduced; None: full size
    environment: Environment | None
    device: str
    evidence: str  # whether ours is measured, rehearsed or predicted
    lines: tuple[ComparedFigure, ...]


def lines(figures: Iterable[PublishedFigure], rows: Sequence[Row], *, reduced: bool) -> tuple[ComparedFigure, ...]:
    """Return each published figure with ours. `reduced`: our sizes and times are those of a smaller model."""
    compared = []
    for figure in figures:
        quantity = TABLE[figure.quantity]
        chosen = [row for row in rows if figure.chooses(row.case)]
        value = quantity.of(chosen, rows) if chosen else None
        ours = value
        if isinstance(value, (int, float)) and figure.unit != "B" and (figure.unit or not isinstance(value, int)):
            ours = value / UNITS[quantity.kind][figure.unit]
        other_size = reduced and quantity.kind in ("bytes", "seconds") and not figure.arithmetic
        difference = relative = None
        if isinstance(ours, (int, float)) and isinstance(figure.published, (int, float)) and not other_size:
            difference = ours - figure.published
            relative = difference / figure.published if figure.published else None
        widths: list[float | None] = []  # of the row's and the baseline's steps, and half the interval of the ratio
        if chosen and quantity.sampled:
            least, most = chosen[0].time_ratio_range or (0.0, 0.0)  # that of `none` is a point
            widths = [row.step_spread for row in (chosen[0], baseline(chosen[0], rows)) if row]
            widths += [(most - least) / 2] if most > least else []
        line = ComparedFigure(
            what=f"{figure.label}: {quantity.about}" if figure.label else quantity.about, kind=quantity.kind,
            unit=figure.unit, published=figure.published, arithmetic=figure.arithmetic, ours=ours,
            reason=_reason(chosen, rows, quantity.kind), note=figure.note, other_size=other_size,
            spread=max((width for width in widths if width is not None), default=None), difference=difference,
            relative=relative,
        )  # fmt: skip
        compared.append(line)
    return tuple(compared)


def _reason(chosen: Sequence[Row], rows: Sequence[Row], kind: str) -> str | None:
    """Return why there is no number of ours, or nothing to compare a change or a share with; None if there is."""
    if not chosen:
        return "not in this run"
    failed = next((_outcome(row) for row in chosen if row.outcome != "ok"), None)
    if failed or kind not in ("change", "share"):
        return failed
    none = baseline(chosen[0], rows)
    if none is None:
        return "nothing to compare with: the run has no row without checkpointing"
    return None if none.outcome == "ok" else f"nothing to compare with: none is {_outcome(none)}"


def _outcome(row: Row) -> str:
    words = row.outcome.replace("_", " ")
    return f"{words}: {row.detail}" if row.detail else words


def baseline(row: Row, rows: Sequence[Row]) -> Row | None:
    """Return the row of the same case without checkpointing; None if there is none."""
    return next((candidate for candidate in rows if candidate.case == row.case.baseline), None)


class Quantity(NamedTuple):
    """The name of a quantity, the kind of its units, and how a row is read for it.

    A change is against the same case without checkpointing: -0.6 is 60 % less. A share is one of the largest saving,
    among the strategies that differ only in `k`. Both are None if either row is not ok. A growth is the exponent of the
    quantity's growth with the number of blocks, over all rows that a figure is about.
    """

    about: str
    kind: str  # a key of UNITS
    column: str | Callable[[Row], Any]  # of a row's table, or how a row is read
    sampled: bool = False  # from times, which have a spread
    is_growth: bool = False

    def of(self, chosen: Sequence[Row], rows: Sequence[Row]) -> Value:
        """Return the value for the rows that a figure is about, among all rows of the run."""
        row, none = chosen[0], baseline(chosen[0], rows)
        if self.is_growth:
            points = [(one.built.num_blocks, self._read(one)) for one in chosen if one.built and one.outcome == "ok"]
            measured = [(size, value) for size, value in points if value is not None]
            return exponent([size for size, _ in measured], [value for _, value in measured])
        if self.kind not in ("change", "share"):
            return self._read(row)  # type: ignore[no-any-return]
        if row.outcome != "ok" or none is None or none.outcome != "ok":
            return None
        mine, base = self._read(row), self._read(none)
        if mine is None or not base:
            return None
        if self.kind == "change":
            return mine / base - 1  # type: ignore[no-any-return]
        peers = [peer for peer in rows if peer.outcome == "ok" and peer.case.baseline == row.case.baseline]
        alike = [self._read(peer) for peer in peers if _without_k(peer.case) == _without_k(row.case)]
        smallest = min(value for value in alike if value is not None)
        return (base - mine) / (base - smallest) if base > smallest else None

    def _read(self, row: Row) -> Any:
        return COLUMNS[self.column][1](row) if isinstance(self.column, str) else self.column(row)


def _without_k(case: Case) -> tuple[str, dict[str, str]]:
    return case.strategy.name, {**case.strategy.options, "k": ""}


def _saved_but_loss(row: Row) -> int | None:
    """Return the saved bytes without the loss, a scalar that is counted in them but not kept for the backward."""
    return None if row.readings.saved_bytes is None else row.readings.saved_bytes - FLOAT_BYTES


def _optimizer_ratio(row: Row) -> float | None:
    static = row.readings.static_bytes
    return static["optimizer"] / static["parameters"] if static and static["parameters"] else None


def _live_activations(row: Row) -> int | None:
    """Return how many whole activations of a dense-chain of one width the forward leaves live."""
    layer_bytes = activation_bytes(row.case)
    return None if layer_bytes is None or row.readings.saved_bytes is None else row.readings.saved_bytes // layer_bytes


def _peak_activations(row: Row) -> int | None:
    """Return how many whole activations and gradients of activations are live at the peak besides static bytes."""
    layer_bytes, readings = activation_bytes(row.case), row.readings
    peak, start, gradients = readings.peak_bytes, readings.start_bytes, readings.peak_gradient_bytes
    if layer_bytes is None or peak is None or start is None or gradients is None:
        return None
    return (peak - start - gradients) // layer_bytes


def activation_bytes(case: Case) -> int | None:
    """Return the bytes of a layer's output in an fp32 dense-chain of one width; None for any other model."""
    widths = set(case.model.options.get("widths", "").split("+"))
    if case.model.name != "dense-chain" or len(widths) != 1 or case.precision != "fp32":
        return None
    (width,) = widths
    return FLOAT_BYTES * int(width) * case.batch_size if width.isdigit() and case.batch_size else None


TABLE = {
    "saved_bytes": Quantity("saved", "bytes", "saved_bytes"),
    "saved_but_loss": Quantity("saved, without the loss itself", "bytes", _saved_but_loss),
    "forward_peak_bytes": Quantity("forward peak", "bytes", "forward_peak_bytes"),
    "peak_bytes": Quantity("step peak", "bytes", "peak_bytes"),
    "saved_change": Quantity("saved, against none", "change", "saved_bytes"),
    "forward_peak_change": Quantity("forward peak, against none", "change", "forward_peak_bytes"),
    "peak_change": Quantity("step peak, against none", "change", "peak_bytes"),
    "saved_share": Quantity("saved, share of the saving", "share", "saved_bytes"),
    "forward_peak_share": Quantity("forward peak, share of the saving", "share", "forward_peak_bytes"),
    "peak_share": Quantity("step peak, share of the saving", "share", "peak_bytes"),
    "static_bytes": Quantity("static", "bytes", "static_bytes"),
    "parameter_bytes": Quantity("parameters", "bytes", "static_parameters_bytes"),
    "gradient_bytes": Quantity("gradients", "bytes", "static_gradients_bytes"),
    "optimizer_bytes": Quantity("optimizer state", "bytes", "static_optimizer_bytes"),
    "optimizer_ratio": Quantity("optimizer state / parameters", "number", _optimizer_ratio),
    "step_seconds": Quantity("step", "seconds", "step_seconds", sampled=True),
    "time_change": Quantity("step, against none", "change", "time_ratio", sampled=True),
    "forward_calls": Quantity(
        "forward computations", "number", lambda row: sum(row.readings.block_calls or ()) or None
    ),
    "calls_by_layer": Quantity(
        "forward computations of each layer",
        "words",
        lambda row: " ".join(map(str, row.readings.block_calls or ())) or None,
    ),
    "live_activations": Quantity("activations live after the forward", "number", _live_activations),
    "peak_activations": Quantity("activations and their gradients live at the peak", "number", _peak_activations),
    "gradients": Quantity("gradients", "words", lambda row: GRADIENTS.get(row.gradients)),
    "precision_difference": Quantity(
        "largest relative difference of a gradient to fp32",
        "number",
        "precision_difference",
    ),
    "saved_growth": Quantity("saved ~ blocks to the power of", "number", "saved_bytes", is_growth=True),
    "peak_growth": Quantity("step peak ~ blocks to the power of", "number", "peak_bytes", is_growth=True),
    "time_growth": Quantity("step ~ blocks to the power of", "number", "step_seconds", is_growth=True),
}
