"""Plot of live memory over a step by category, with one panel per strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import ScaledTranslation

from profiler.analysis import live_bytes
from profiler.analysis.rows import Row
from profiler.core.errors import UserError
from profiler.core.plan_file import strategy_label
from profiler.core.record import Timeline
from profiler.core.trace_data import Trace
from profiler.core.units import byte_unit, bytes_text
from profiler.views.plots import picture, theme, write
from profiler.views.plots.theme import FONT, INK, USUAL
from profiler.views.sanitize import plain, short
from profiler.views.tables.columns import peak_name
from profiler.views.tables.explanation import where

NUM_POINTS = 2000  # across a panel, about one a pixel
WIDTH, CROWD = 10.0, 5  # inches; panels are lower from this many strategies on
PANELS = ((2.0, 1.22), (1.35, 1.4))  # height in inches, and axis over highest peak, as room for the names of the phases
SHADE = "#DCE9F2"  # a light SKY
LEAST = 0.002  # of the axis: a category that never reaches it is invisible, and not in the legend
GAP = 8.0  # pixels between texts


class Step(NamedTuple):
    """What one panel shows: the live bytes of a step at some places, from 0 to `end`."""

    name: str
    places: Sequence[int]
    nbytes: Mapping[str, Sequence[int]]  # by category, at each place
    phases: Sequence[tuple[str, int, int]]  # each with its first and its last place
    recomputes: Sequence[tuple[int, int]]
    end: int
    peak: tuple[int, int]  # its place and bytes
    words: str  # the peak with its size
    where: str = ""  # where the peak is


def traced(name: str, trace: Trace) -> Step:
    """Return the step of a trace; a place is the number of an operator."""
    (places, nbytes), peak = live_bytes.curve(trace, num_points=NUM_POINTS), live_bytes.peak(trace)
    return Step(
        name=name,
        places=places,
        nbytes=nbytes,
        phases=list(trace.spans()),
        recomputes=live_bytes.recomputes(trace),
        end=len(trace.operators),
        peak=(peak.number, peak.nbytes),
        words=f"peak {bytes_text(peak.nbytes)}",
        where=plain(where(peak)),
    )


def recorded(row: Row, timeline: Timeline) -> Step:
    """Return the step of a row, at the points that its record keeps."""
    totals = [sum(parts) for parts in zip(*timeline.nbytes.values(), strict=True)]
    names, firsts = zip(*timeline.phases, strict=True)
    lasts = [first - 1 for first in (*firsts[1:], len(totals))]
    return Step(
        name=strategy_label(row.case.label),
        places=range(len(totals)),
        nbytes=timeline.nbytes,
        phases=list(zip(names, firsts, lasts, strict=True)),
        recomputes=(),
        end=len(totals) - 1,
        peak=(totals.index(max(totals)), max(totals)),
        words=f"{peak_name(row)} {bytes_text(row.readings.peak_bytes)}",
        where=plain(row.readings.peak_phase or ""),
    )


def plot(traces: Mapping[str, Trace], *, title: str, path: Path, force: bool = False) -> Path:
    """Draw the traces, keyed by strategy, into a png, svg or pdf.

    Raises UserError for another suffix, for a file that exists, without `force`, and if there is nothing to draw.
    """
    return write(partial(draw, traces, title=title), path=path, force=force)


def draw(traces: Mapping[str, Trace], *, title: str) -> Figure:
    """Return a figure with one panel per trace, from top to bottom in the order of the mapping, with shared axes."""
    if not traces:
        raise UserError("nothing to draw: no strategy was traced", hint="name one with --strategies none")
    steps = [traced(name, trace) for name, trace in traces.items()]
    with theme.at_work(USUAL):
        return draw_steps(steps, title=title, along="operators of the step, in their order")


def draw_steps(steps: Sequence[Step], *, title: str, along: str) -> Figure:
    """Return a figure with one panel per step, with shared axes; `along` says what the places are."""
    size, unit = byte_unit(step.peak[1] for step in steps)
    inches, headroom = PANELS[len(steps) >= CROWD]
    limits = {
        "xlim": (0, max(1, *(step.end for step in steps))),
        "ylim": (0, headroom * max(1, *(step.peak[1] for step in steps)) / size),
        "xlabel": along,
    }
    panels = [partial(_panel, step=step, size=size, unit=unit, limits=limits) for step in steps]
    return picture(panels, [inches] * len(steps), width=WIDTH, title=title, is_shared=True, around=1.5)


def _panel(axes: Axes, *, step: Step, size: int, unit: str, limits: Mapping[str, object]) -> Callable[[], None]:
    """Draw one step: live memory, phases, peak. The returned function fits texts once the layout is final."""
    axes.set(**limits)
    axes.label_outer()
    axes.figure.supylabel(f"live memory ({unit})")
    axes.grid(visible=False, axis="x")
    theme.number_axis(axes.xaxis)
    theme.number_axis(axes.yaxis, most=4)
    _stack(axes, step, size)
    labels = _phases(axes, step)
    number, nbytes = step.peak
    mark = axes.plot([number], [nbytes / size], "v", color=INK, clip_on=False, label="peak")[0]
    mark.set_transform(mark.get_transform() + ScaledTranslation(0, 4 / 72, axes.figure.dpi_scale_trans))
    over = {"xycoords": "axes fraction", "offset": (0, 4)}
    name = theme.note(axes, short(step.name, theme.LONGEST_NAME), (0, 1), size=FONT, ha="left", weight="bold", **over)  # type: ignore[arg-type]
    peak = theme.note(axes, ": ".join(filter(None, (step.words, step.where))), (1, 1), ha="right", **over)  # type: ignore[arg-type]

    def finish() -> None:
        for label, first, last in labels:
            _fit(label, axes, first=first, last=last, is_last=label is labels[-1][0])
        if name.get_window_extent().x1 + GAP > peak.get_window_extent().x0:
            peak.set_text(step.words)

    return finish


def _stack(axes: Axes, step: Step, size: int) -> None:
    """Draw the categories as a stack, with those that checkpointing does not change at the bottom."""
    present = [category for category in theme.COLOURS if any(step.nbytes.get(category, ()))]
    axes.stackplot(
        step.places,
        [[nbytes / size for nbytes in step.nbytes[category]] for category in present],
        colors=[theme.COLOURS[category] for category in present],
        step="mid",
        linewidth=0,
    )
    visible = LEAST * axes.get_ylim()[1] * size
    for category in (name for name in present if max(step.nbytes[name]) >= visible):
        theme.legend_square(axes, theme.WORDS.get(category, category), theme.COLOURS[category])


def _phases(axes: Axes, step: Step) -> list[tuple[Annotation, int, int]]:
    """Draw lines where phases begin, and shade recomputes; return the labels of non-empty phases with their ends."""
    ranges = [(first - 0.5, last - first + 1) for first, last in step.recomputes]
    if ranges:
        axes.broken_barh(ranges, (0, axes.get_ylim()[1]), color=SHADE, linewidth=0, zorder=0.4)
        theme.legend_square(axes, "recompute", SHADE)
    labels = []
    for phase, first, last in step.phases:
        if last >= first:
            axes.axvline(first - 0.5, color=INK, linewidth=0.7, linestyle=(0, (2, 2)))
            at, edge, text = ((first + last) / 2, 1), ("data", "axes fraction"), plain(phase)
            label = theme.note(axes, text, at, offset=(0, -2), size=FONT - 2.5, xycoords=edge, ha="center", va="top")
            labels.append((label, first, last + 1))
    return labels


def _fit(label: Annotation, axes: Axes, *, first: int, last: int, is_last: bool) -> None:
    """Remove a label that is wider than its phase; the last one may extend past its phase if there is room."""
    left, right = axes.transData.transform([(first - 0.5, 0), (last - 0.5, 0)])[:, 0]
    width, end = label.get_window_extent().width, axes.get_window_extent().x1
    if width <= right - left:
        return
    if is_last and left + GAP + width <= end:
        label.xy = (first - 0.5, 1)
        label.set(position=(GAP * 72 / axes.figure.dpi, -2), horizontalalignment="left")
    else:
        label.remove()
