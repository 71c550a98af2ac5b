"""Plots with one line per strategy: their colors and markers, and the limit of the device's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from profiler.analysis.memory_fit import device_memory
from profiler.analysis.rows import Row
from profiler.core.case import Choice
from profiler.core.units import bytes_text
from profiler.views.geometry import Pair
from profiler.views.plots.style import sized
from profiler.views.plots.theme import BLUE, GREEN, INK, ORANGE, PURPLE, SKY, VERMILLION

COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY)
MARKERS = "o^vDPX<>ph"


class StrategyLine(NamedTuple):
    """The rows of one strategy, and how they are drawn. Markers tell lines apart in grayscale and beyond six colors."""

    strategy: Choice
    rows: list[Row]
    colour: str
    marker: str


def of_strategies(rows: Sequence[Row]) -> list[StrategyLine]:
    """Return one line per strategy, `none` first."""
    by_strategy: dict[Choice, list[Row]] = {}
    for row in rows:
        by_strategy.setdefault(row.case.strategy, []).append(row)
    none = by_strategy.pop(Choice("none"), None)
    others = [
        StrategyLine(strategy, of_it, COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)])
        for number, (strategy, of_it) in enumerate(by_strategy.items())
    ]
    return [StrategyLine(Choice("none"), none, INK, "s"), *others] if none else others


def draw(axes: Axes, line: StrategyLine, points: Sequence[Pair], *, hollow: Sequence[Pair] = ()) -> None:
    """Draw a line and its points; those that are also in `hollow` are drawn hollow."""
    shape: dict[str, Any] = {"marker": line.marker, "markersize": sized(6), "color": line.colour}
    axes.plot(
        *zip(*points, strict=True),
        **shape,
        markeredgecolor="white",
        markeredgewidth=sized(0.7),
        linewidth=sized(1.5),
        zorder=4,
    )
    if hollow:
        axes.plot(
            *zip(*hollow, strict=True),
            **shape,
            markerfacecolor="white",
            markeredgewidth=sized(1.3),
            linestyle="none",
            zorder=5,
        )


def limit(axes: Axes, rows: Sequence[Row], size: int, *, upright: bool) -> list[Pair]:
    """Draw a line at the device's memory, if that is within the axes; return its ends, or nothing."""
    device_bytes = device_memory(rows)
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    low, high = (left, right) if upright else (bottom, top)
    if device_bytes is None or not low < device_bytes / size < high:
        return []
    (axes.axvline if upright else axes.axhline)(
        device_bytes / size,
        color=INK,
        linewidth=sized(1),
        linestyle=(0, (4, 3)),
        zorder=1,
        label=f"memory of the device: {bytes_text(device_bytes)}",
    )
    at = device_bytes / size
    return [(at, bottom), (at, top)] if upright else [(left, at), (right, at)]
