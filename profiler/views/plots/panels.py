"""What defines a kind of plot, and how rows are grouped into its panels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from profiler.analysis import axes
from profiler.analysis.axes import STRATEGY, Space
from profiler.analysis.rows import Row
from profiler.core import catalogue
from profiler.core.case import Case
from profiler.core.errors import UserError
from profiler.training import models
from profiler.views.tables.columns import groups

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Panels = list[list[Row]]


class Plot(NamedTuple):
    """One kind of plot."""

    panels: Callable[[Sequence[Row], Sequence[str]], Panels]  # the rows of each panel, over the axes that were named
    has: Callable[[Row], bool]  # whether a row has the numbers that are drawn
    height: Callable[[Sequence[Row], float], float]  # inches that a panel of these rows needs at this width
    # draws a panel; the second argument is the rows of all panels. Returns a function to call once the layout is final
    draw: Callable[[Axes, Sequence[Row], Sequence[Row]], Callable[[], object] | None]
    needs: str  # the numbers that are drawn, in words
    width: float = 8.5  # inches of a panel
    is_beside: bool = False  # whether panels stand beside each other


def alike(rows: Sequence[Row], over: Sequence[str]) -> Panels:
    """Return the groups of rows that may be compared: they differ in the strategy alone."""
    if over:
        raise UserError("--over has no effect on this kind of plot", hint="heat and growth are over axes")
    return groups(rows)


def planes(rows: Sequence[Row], over: Sequence[str]) -> Panels:
    """Return planes of rows over two settings, named by `over` or chosen, one for each value of the other settings.

    Raises UserError if no two settings vary together.
    """
    space = space_of(rows)
    chosen = axes.two(space, over)
    panels = [
        panel
        for panel in axes.groups_over(rows, space, [axis.name for axis in chosen])
        if len(space_of(panel).axes) > 1
    ]
    if not panels:
        names = " and ".join(axis.label for axis in chosen)
        raise UserError(f"nothing to lay out over two axes: {names} do not vary together", hint=axes.HINT)
    return panels


def has_plane(rows: Sequence[Row]) -> bool:
    """Whether settings besides the strategy vary, so that a plane can show them."""
    if len(groups(rows)) < 2:
        return False
    try:
        return bool(planes(rows, ()))
    except UserError:
        return False


def curves(rows: Sequence[Row], over: Sequence[str]) -> Panels:
    """Return the groups of rows that differ in the strategy and in one numeric setting."""
    space = space_of(rows)
    chosen = axes.rising(space, over)
    panels = axes.groups_over(rows, space, [STRATEGY, chosen.name])
    return [panel for panel in panels if len({space.at(row.case, chosen) for row in panel}) > 1]


def batches(rows: Sequence[Row], over: Sequence[str]) -> Panels:
    """Return the groups of rows that differ in the strategy and in the batch size."""
    if over:
        raise UserError("--over has no effect on throughput", hint="it is over the batch sizes and the strategies")
    return axes.groups_over(rows, space_of(rows), [STRATEGY, "batch_size"])


def space_of(rows: Sequence[Row]) -> Space:
    """Return the axes of these rows; model options that a case leaves out count with their defaults."""
    return axes.space((row.case for row in rows), defaults([row.case for row in rows]))


def defaults(cases: Sequence[Case]) -> Mapping[str, Mapping[str, str]]:
    """Return the defaults of the options of each model in the catalogue, by its name; none for any other model.

    The user's own code is never looked up, since a run folder may name any file.
    """
    defaults_of = {}
    for name in {case.model.name for case in cases}:
        entry = catalogue.listed(name, models.TABLE)
        options = entry.options if entry else ()
        defaults_of[name] = {option.name: option.default for option in options if option.default is not None}
    return defaults_of
