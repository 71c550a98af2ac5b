"""Finds the settings of a run that vary, lays out its rows over them, and fits how a quantity grows with a size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from statistics import linear_regression

import msgspec
from msgspec import UNSET

from profiler.analysis.rows import Row
from profiler.core import by_key
from profiler.core.case import Case
from profiler.core.errors import UserError, nearest

Value = int | float | str | None
STRATEGY = "strategy"
HINT = "a list on an option is an axis, as in --batch-size 8,16,32"
FIELDS = tuple(field for field in Case.__struct_fields__ if field not in ("model", "levers"))
SHOWN = 0.005  # a smaller error would round to 0 %
FEWEST = 3  # points; fewer would fit anything


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that varies: a field of the cases, or an option of their model."""

    name: str
    values: tuple[Value, ...]  # at least two: numbers ascending, words in the order of the cases

    @property
    def is_number(self) -> bool:
        return all(_is_number(value) for value in self.values)

    @property
    def label(self) -> str:
        return self.name.replace("_", " ")


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """The axes of a run, and all cases with their settings."""

    axes: tuple[Axis, ...]
    settings: dict[Case, dict[str, Value]]

    def at(self, case: Case, axis: Axis) -> Value:
        return self.settings[case].get(axis.name)


def space(cases: Iterable[Case], defaults: Mapping[str, Mapping[str, str]]) -> Space:
    """Return the axes of these cases; `defaults` has, by model name, the options that a model's text leaves out."""
    distinct = list(dict.fromkeys(cases))
    several = len({case.model.name for case in distinct}) > 1
    settings: dict[Case, dict[str, Value]] = {}
    for case in distinct:
        own = {name: getattr(case, name) for name in FIELDS} | {STRATEGY: case.label}
        own = {name: None if value is UNSET else value for name, value in own.items()}
        fields = {name: value if value is None or _is_number(value) else str(value) for name, value in own.items()}
        if several:  # each model is one value, since their options are not comparable
            settings[case] = {"model": str(case.model), **fields}
            continue
        options = {**defaults.get(case.model.name, {}), **case.model.options}
        clear = {f"model's {name}" if name in fields else name: _read(text) for name, text in options.items()}
        settings[case] = {**clear, **fields}
    if several and len({(case.model, case.batch_size) for case in distinct}) == len({case.model for case in distinct}):
        settings = {case: {**fields, "batch_size": None} for case, fields in settings.items()}  # a model's own
    names = dict.fromkeys(name for fields in settings.values() for name in fields)
    values = {name: list(dict.fromkeys(fields.get(name) for fields in settings.values())) for name in names}
    ordered = {
        name: sorted(varied) if all(map(_is_number, varied)) else varied  # type: ignore[type-var]
        for name, varied in values.items()
    }
    axes = tuple(Axis(name=name, values=tuple(varied)) for name, varied in ordered.items() if len(varied) > 1)
    return Space(axes=axes, settings=settings)


def named(space: Space, word: str) -> Axis:
    """Return the axis of this name. Raises UserError if nothing of that name varies."""
    name = word.strip().replace("-", "_")
    axes = {axis.name: axis for axis in space.axes}
    if name not in axes:
        hint = nearest(name, axes) or f"its axes are {', '.join(axes) or 'none'}"
        raise UserError(f"'{word}' is not an axis of this run", hint=hint)
    return axes[name]


def two(space: Space, words: Sequence[str] = ()) -> tuple[Axis, Axis]:
    """Return the horizontal and the vertical axis of a plane: the named ones, then those with the most values.

    Strategies are vertical. Raises UserError if fewer than two settings vary.
    """
    chosen = [named(space, word) for word in words]
    if len(chosen) > 2 or len(set(chosen)) < len(chosen):
        raise UserError(f"a plane has two axes, not '{','.join(words)}'", hint="name two that differ")
    strategies = [axis for axis in space.axes if axis.name == STRATEGY]
    order = list(dict.fromkeys([*(chosen or _ranked(space)[:1]), *strategies, *_ranked(space)]))
    if len(order) < 2:
        varying = f"only the {order[0].label} varies" if order else "nothing varies"
        raise UserError(f"nothing to lay out over two axes: {varying} in this run", hint=HINT)
    across, up = order[:2]
    return (up, across) if across.name == STRATEGY else (across, up)


def rising(space: Space, words: Sequence[str] = ()) -> Axis:
    """Return the axis of positive numbers for a growth curve: the named one, else the one with the most values.

    Raises UserError if there is none.
    """
    if len(words) > 1:
        raise UserError(f"curves are over one axis, not '{','.join(words)}'", hint=f"name one, as {words[0]}")
    for axis in [named(space, word) for word in words] or _ranked(space):
        if axis.is_number and min(map(float, axis.values)) > 0:  # type: ignore[arg-type]  # numbers
            return axis
    subject = f"{words[0]} is" if words else "no axis of this run is"
    raise UserError(f"nothing to grow with: {subject} of positive numbers", hint=HINT)


def groups_over(rows: Iterable[Row], space: Space, over: Iterable[str]) -> list[list[Row]]:
    """Return the rows in groups that differ only in the axes of `over`."""
    fixed = [axis for axis in space.axes if axis.name not in set(over)]
    return list(by_key((tuple(space.at(row.case, axis) for axis in fixed), row) for row in rows).values())


def grid(rows: Iterable[Row], space: Space, across: Axis, up: Axis) -> dict[tuple[Value, Value], Row]:
    """Return the rows of one plane by their two values; what was not measured is missing."""
    return {(space.at(row.case, across), space.at(row.case, up)): row for row in rows}


def _ranked(space: Space) -> list[Axis]:
    """Return all axes but the strategy: numbers before words, those with the most values first."""
    candidates = (axis for axis in space.axes if axis.name != STRATEGY)
    return sorted(candidates, key=lambda axis: (not axis.is_number, -len(axis.values)))


def _read(text: str) -> Value:
    """Return the number that an option's text is, else the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """The fit values = constant + scale * sizes^exponent, where the constant is zero, or the exponent 1 or -1."""

    constant: float = 0.0
    scale: float
    exponent: float = 1.0
    largest_error: float = 0.0  # relative, of the fitted values

    def at(self, size: float) -> float:
        return float(self.constant + self.scale * size**self.exponent)

    def text(self, unit: float = 1.0) -> str:
        """Return `2.1 + 1.13 n` in a unit, or `n^0.75` for a power; then its largest error."""
        error = f" \u00b1{self.largest_error:.0%}".replace("%", " %") if self.largest_error >= SHOWN else ""
        if not self.constant:
            return f"n^{self.exponent:.2f}{error}"
        sign = "+" if self.scale >= 0 else "-"
        part = f"{_number(abs(self.scale) / unit)}{' n' if self.exponent > 0 else '/n'}"
        return f"{_number(self.constant / unit)} {sign} {part}{error}"


def nearest_growth(sizes: Sequence[float], values: Sequence[float]) -> Growth | None:
    """Return the fit with the smallest maximum of the relative errors: constant plus n or 1/n, or a power.

    None for fewer than three points above zero, or if all sizes are the same.
    """
    points = [(size, value) for size, value in zip(sizes, values, strict=True) if size > 0 and value > 0]
    power = _power(points)
    growths = (power, *(_line(points, sign) or power for sign in (1.0, -1.0))) if power else ()
    return min(growths, key=lambda growth: round(growth.largest_error, 6), default=None)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """Return the exponent of a power law, by least squares on logarithms; None where `nearest_growth` is None."""
    growth = _power([(size, value) for size, value in zip(sizes, values, strict=True) if size > 0 and value > 0])
    return growth.exponent if growth else None


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _power(points: Sequence[tuple[float, float]]) -> Growth | None:
    if len(points) < FEWEST or len({size for size, _ in points}) < 2:
        return None
    line = linear_regression([log(size) for size, _ in points], [log(value) for _, value in points])
    return _with_error(Growth(scale=exp(line.intercept), exponent=line.slope), points)


def _line(points: Sequence[tuple[float, float]], exponent: float) -> Growth | None:
    """Fit a line by least squares of the relative errors: constant / value + scale * size^exponent / value - 1."""
    inverse = [1 / value for _, value in points]
    shares = [size**exponent / value for size, value in points]
    ii, ss = sum(value * value for value in inverse), sum(share * share for share in shares)
    si = sum(value * share for value, share in zip(inverse, shares, strict=True))
    i, s = sum(inverse), sum(shares)
    determinant = ii * ss - si * si
    if determinant <= 1e-12 * ii * ss:  # the sizes hardly differ
        return None
    growth = Growth(constant=(i * ss - s * si) / determinant, scale=(s * ii - i * si) / determinant, exponent=exponent)
    return _with_error(growth, points)


def _with_error(growth: Growth, points: Sequence[tuple[float, float]]) -> Growth:
    largest = max(abs(growth.at(size) / value - 1) for size, value in points)
    return msgspec.structs.replace(growth, largest_error=largest)
