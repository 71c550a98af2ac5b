"""The picture of `gcprof fit`: extra time against peak memory, a curve for each lever's plans and for all together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes

from profiler.analysis.rows import Row
from profiler.core.units import byte_unit
from profiler.views.plots import theme
from profiler.views.plots.lines import COLOURS
from profiler.views.plots.theme import GREY, INK, VERMILLION, Label, Pair, sized
from profiler.views.tables.columns import heading
from profiler.views.tables.evidence import marked

SIZE = (8.5, 5.4)  # inches

Curve = Sequence[tuple[int, float]]  # bytes of the peak, and the time as a ratio to the step as it is


def plot(
    curves: Mapping[str, Curve], rows: Sequence[Row], *, chosen: Row | None, limit: int, path: Path, force: bool = False
) -> Path:
    """Draw the curves, the last of which has all levers, and the rows that were run.

    Raises UserError if the suffix is not that of a picture, or if the file exists, without `force`.
    """
    theme.refuse(path, force=force)
    with theme.at_work(theme.USUAL):
        draw = partial(_draw, curves=curves, rows=rows, chosen=chosen, limit=limit)
        figure = theme.picture([draw], [SIZE[1]], width=SIZE[0], title=heading(rows))
    return theme.save(figure, path=path, force=force)


def _draw(
    axes: Axes, *, curves: Mapping[str, Curve], rows: Sequence[Row], chosen: Row | None, limit: int
) -> Callable[[], object]:
    size, unit = byte_unit([*(nbytes for curve in curves.values() for nbytes, _ in curve), rows[0].readings.peak_bytes])
    drawn = list[list[Pair]]()
    for number, (name, curve) in enumerate(curves.items()):
        points = [(nbytes / size, (ratio - 1) * 100) for nbytes, ratio in curve]
        steps = [corner for (x, y), after in pairwise(points) for corner in ((x, y), (after[0], y))]
        drawn.append([*steps, points[-1]])
        is_last = number == len(curves) - 1
        look = {"color": INK, "linewidth": sized(2.4)} if is_last else {
            "color": COLOURS[number % len(COLOURS)], "linewidth": sized(1.5)
        }  # fmt: skip
        axes.plot(*zip(*drawn[-1], strict=True), label=f"plans {name}", zorder=3, **look)  # type: ignore[arg-type]
    ran = [row for row in rows if row.time_ratio is not None and row.readings.peak_bytes]
    at = [((row.readings.peak_bytes or 0) / size, ((row.time_ratio or 1.0) - 1) * 100) for row in ran]
    axes.plot(*zip(*at, strict=True), "o", color=GREY, ms=sized(6), mec="white", label="was run", zorder=4)
    axes.axvline(
        limit / size, color=VERMILLION, linewidth=sized(1.2), linestyle="--", label="to fit, all that is reserved"
    )
    labels = [Label(*place, theme.name(row)) for row, place in zip(ran, at, strict=True)]
    for row, place in zip(ran, at, strict=True):
        if row is chosen:
            axes.plot(*place, "*", color=VERMILLION, ms=sized(15), mec="white", label="chosen", zorder=5)
    known = "estimated" if rows[0].case.has_estimated_times else "by the costs of stages"
    axes.set(xlabel=f"{marked('peak memory', rows)} ({unit})", ylabel=f"extra time of a step (%), {known}")
    axes.margins(x=0.08, y=0.12)
    theme.number_axis(axes.xaxis)
    theme.number_axis(axes.yaxis)
    theme.tell_start(axes)
    return partial(theme.place, axes, labels, lines=drawn)
