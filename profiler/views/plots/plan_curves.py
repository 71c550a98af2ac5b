"""Plot of the Pareto frontier of plans, time against memory, beside the plans that a user would pick."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes

from profiler.core.units import byte_unit
from profiler.planning import candidates
from profiler.planning.candidates import KINDS, largest_stage, none
from profiler.planning.chain import Chain
from profiler.planning.simulator import Cost
from profiler.planning.solver import Point
from profiler.views.plots import theme
from profiler.views.plots.figure import GREY, USUAL, at_work, picture, refuse, save
from profiler.views.plots.theme import BLUE, GREEN, ORANGE, VERMILLION

SIZE = (8.5, 5.4)  # inches
CROWD = 60  # plans; of more, only the step line is drawn
MARKS = {
    "uniform": ("uniform splits", "o", ORANGE, 9),
    "first": ("the first N", "^", GREEN, 5),
    "every": ("every j-th", "s", VERMILLION, 6),
}  # in different sizes, since they often coincide
assert tuple(MARKS) == KINDS, "every kind of rival has its mark"


def plot(points: Sequence[Point], chain: Chain, *, title: str, path: Path, force: bool = False) -> Path:
    """Draw the frontier as a step line, with every uniform split, first N and every j-th as points.

    Raises UserError if the suffix is not that of a picture, or if the file exists, without `force`.
    """
    refuse(path, force=force)
    with at_work(USUAL):
        figure = picture([partial(_draw, points=points, chain=chain)], [SIZE[1]], width=SIZE[0], title=title)
    return save(figure, path=path, force=force)


def _draw(axes: Axes, *, points: Sequence[Point], chain: Chain) -> None:
    size, unit = byte_unit(point.peak_bytes for point in points)
    base = none(chain).cost
    extra = [_extra(point, base) for point in points]
    peaks = [point.peak_bytes / size for point in points]
    axes.step([*peaks, base.peak_bytes / size], [*extra, extra[-1]], where="post", color=BLUE, label="plans", zorder=3)
    if len(points) <= CROWD:
        axes.plot(peaks, extra, ".", color=BLUE, markersize=5, zorder=3)
    for kind, (words, mark, colour, points_wide) in MARKS.items():
        costs = [cost for _, _, cost in candidates.costed(chain, kind)]
        places = [cost.peak_bytes / size for cost in costs], [_extra(cost, base) for cost in costs]
        axes.plot(*places, mark, color=colour, markersize=points_wide, mfc="none", linestyle="none", label=words)
    floor = largest_stage(chain)[1] / size
    axes.axvline(floor, color=GREY, linewidth=1, linestyle="--", label="floor: static bytes and the largest stage")
    axes.set(xlabel=f"peak memory ({unit}), by the costs of the stages", ylabel="extra time of a step (%)")
    theme.number_axis(axes.xaxis)
    theme.number_axis(axes.yaxis)
    theme.tell_start(axes)


def _extra(point: Point | Cost, base: Cost) -> float:
    """Return the extra time in percent of the step without checkpointing; 0 if that takes no time."""
    return (point.step_seconds / base.step_seconds - 1) * 100 if base.step_seconds else 0.0
