"""Fits how a quantity grows with a size: a constant plus a part proportional to it or to its inverse; or a power."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from statistics import linear_regression

import msgspec

SHOWN = 0.005  # a smaller error would round to 0 %
FEWEST = 3  # points; fewer would fit anything


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
    """Return the fit with the smallest maximum of the relative errors, of the three forms.

    None for fewer than three points above zero, or if all sizes are the same.
    """
    points = _points(sizes, values)
    growths = (_power(points), _line(points, 1.0), _line(points, -1.0)) if points else ()
    return min(growths, key=lambda growth: round(growth.largest_error, 6), default=None)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """Return the exponent of a power law, by least squares on logarithms; None where `nearest_growth` is None."""
    points = _points(sizes, values)
    return _power(points).exponent if points else None


def _points(sizes: Sequence[float], values: Sequence[float]) -> Sequence[tuple[float, float]]:
    """Return the points above zero; none if they are too few to fit."""
    points = [(size, value) for size, value in zip(sizes, values, strict=True) if size > 0 and value > 0]
    return points if len(points) >= FEWEST and len({size for size, _ in points}) > 1 else []


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _power(points: Sequence[tuple[float, float]]) -> Growth:
    line = linear_regression([log(size) for size, _ in points], [log(value) for _, value in points])
    return _with_error(Growth(scale=exp(line.intercept), exponent=line.slope), points)


def _line(points: Sequence[tuple[float, float]], exponent: float) -> Growth:
    """Fit a line by least squares of the relative errors: constant / value + scale * size^exponent / value - 1."""
    inverse = [1 / value for _, value in points]
    shares = [size**exponent / value for size, value in points]
    ii, ss = sum(value * value for value in inverse), sum(share * share for share in shares)
    si = sum(value * share for value, share in zip(inverse, shares, strict=True))
    i, s = sum(inverse), sum(shares)
    determinant = ii * ss - si * si
    if determinant <= 1e-12 * ii * ss:  # the sizes hardly differ
        return _power(points)
    growth = Growth(constant=(i * ss - s * si) / determinant, scale=(s * ii - i * si) / determinant, exponent=exponent)
    return _with_error(growth, points)


def _with_error(growth: Growth, points: Sequence[tuple[float, float]]) -> Growth:
    largest = max(abs(growth.at(size) / value - 1) for size, value in points)
    return msgspec.structs.replace(growth, largest_error=largest)
