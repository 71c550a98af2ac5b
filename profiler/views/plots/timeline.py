"""Plot of live memory over a step by category, with one panel per strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import ScaledTranslation

from profiler.analysis import live_bytes
from profiler.analysis.live_bytes import Peak, curve, recomputes
from profiler.core.errors import UserError
from profiler.core.trace_data import BUCKETS, CATEGORIES, GATHERED, Trace
from profiler.core.units import byte_unit, bytes_text
from profiler.views.plots import theme
from profiler.views.plots.plot import DPI, refuse, save
from profiler.views.plots.style import STYLES, at_work
from profiler.views.plots.theme import BLUE, FONT, GREEN, GREY, INK, LONGEST_NAME, ORANGE, SKY, VERMILLION
from profiler.views.sanitize import plain, short
from profiler.views.tables.explanation import CATEGORIES as WORDS
from profiler.views.tables.explanation import where
from profiler.views.tables.grid import broken

MAUVE, SILVER = "#CC79A7", "#B8B8B8"  # the first is of Okabe and Ito too
PLUM, TEAL = "#8A2C66", "#2F6F8F"  # categories of several ranks only; darker than their neighbors in the stack
COLOURS = {
    "parameters": GREY,
    "buffers": SILVER,
    "gradients": VERMILLION,
    "optimizer": GREEN,
    "inputs": MAUVE,
    "workspaces": INK,
    BUCKETS: PLUM,
    GATHERED: TEAL,
    "saved": BLUE,
    "recomputed": SKY,
    "temporaries": ORANGE,
}
assert tuple(COLOURS) == CATEGORIES, "every category has its colour, in the order of the stack"
NUM_POINTS = 2000  # across a panel, about one a pixel
WIDTH, CROWD = 10.0, 5  # inches; panels are lower from this many strategies on
PANELS = ((2.0, 1.22), (1.35, 1.4))  # height in inches, and axis over highest peak, as room for the names of the phases
SHADE = "#DCE9F2"  # a light SKY
LEAST = 0.002  # of the axis: a category that never reaches it is invisible, and not in the legend
GAP = 8.0  # pixels between texts


def plot(traces: Mapping[str, Trace], *, title: str, path: Path, force: bool = False) -> Path:
    """Draw the traces, keyed by strategy, into a png, svg or pdf.

    Raises UserError for another suffix, for a file that exists, without `force`, and if there is nothing to draw.
    """
    refuse(path, force=force)
    return save(draw(traces, title=title), path=path, force=force)


@at_work(STYLES["default"])
def draw(traces: Mapping[str, Trace], *, title: str) -> Figure:
    """Return a figure with one panel per trace, from top to bottom in the order of the mapping, with shared axes."""
    if not traces:
        raise UserError("nothing to draw: no strategy was traced", hint="name one with --strategies none")
    peaks = [live_bytes.peak(trace) for trace in traces.values()]
    size, unit = byte_unit(peak.nbytes for peak in peaks)
    inches, headroom = PANELS[len(traces) >= CROWD]
    figure = Figure(figsize=(WIDTH, 1.5 + inches * len(traces)), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.05)  # type: ignore[union-attr, call-arg]
    axes = list(figure.subplots(len(traces), 1, sharex=True, sharey=True, squeeze=False).flat)
    axes[0].set_xlim(0, max(1, *(len(trace.operators) for trace in traces.values())))
    axes[0].set_ylim(0, headroom * max(1, *(peak.nbytes for peak in peaks)) / size)
    finishers = [
        _panel(panel_axes, name, traces[name], peak, size)
        for panel_axes, name, peak in zip(axes, traces, peaks, strict=True)
    ]
    _around(figure, axes, title, unit)
    figure.canvas.draw()  # the layout is computed here, and frozen below
    figure.set_layout_engine("none")
    for finish in finishers:
        finish()
    return figure


def _panel(axes: Axes, name: str, trace: Trace, peak: Peak, size: int) -> Callable[[], None]:
    """Draw one strategy: live memory, phases, peak. The returned function fits texts once the layout is final."""
    theme.plain_axes(axes, grid="y")
    _stack(axes, trace, size)
    labels = _phases(axes, trace)
    mark = axes.plot([peak.number], [peak.nbytes / size], "v", markersize=6, color=INK, clip_on=False, label="peak")[0]
    mark.set_transform(mark.get_transform() + ScaledTranslation(0, 4 / 72, axes.figure.dpi_scale_trans))
    title = _above(axes, short(name, LONGEST_NAME), at=0, weight="bold")
    words = f"peak {bytes_text(peak.nbytes)}"
    beside = _above(axes, f"{words}: {plain(where(peak))}", at=1, weight="normal")

    def finish() -> None:
        for label, first, last in labels:
            _fit(label, axes, first=first, last=last, is_last=label is labels[-1][0])
        if title.get_window_extent().x1 + GAP > beside.get_window_extent().x0:
            beside.set_text(words)

    return finish


def _stack(axes: Axes, trace: Trace, size: int) -> None:
    """Draw the categories as a stack, with those that checkpointing does not change at the bottom."""
    live = curve(trace, num_points=NUM_POINTS)
    present = [category for category in COLOURS if any(live.nbytes[category])]
    axes.stackplot(
        live.operators,
        [[nbytes / size for nbytes in live.nbytes[category]] for category in present],
        colors=[COLOURS[category] for category in present],
        step="mid",
        linewidth=0,
    )
    visible = LEAST * axes.get_ylim()[1] * size
    for category in (name for name in present if max(live.nbytes[name]) >= visible):
        theme.legend_square(axes, WORDS.get(category, category), COLOURS[category])


def _phases(axes: Axes, trace: Trace) -> list[tuple[Annotation, int, int]]:
    """Draw lines where phases begin, and shade recomputes; return the labels of non-empty phases with their ends."""
    ranges = [(first - 0.5, last - first + 1) for first, last in recomputes(trace)]
    if ranges:
        axes.broken_barh(ranges, (0, axes.get_ylim()[1]), color=SHADE, linewidth=0, zorder=0.4)
        theme.legend_square(axes, "recompute", SHADE)
    labels = []
    for phase, first, last in trace.spans():
        if last < first:
            continue
        axes.axvline(first - 0.5, color=INK, linewidth=0.7, linestyle=(0, (2, 2)))
        at, edge = ((first + last) / 2, 1), ("data", "axes fraction")
        size = FONT - 2.5
        label = theme.note(axes, phase, at, offset=(0, -2), size=size, xycoords=edge, ha="center", va="top")
        labels.append((label, first, last + 1))
    return labels


def _above(axes: Axes, text: str, *, at: int, weight: str) -> Annotation:
    """Write a line over the panel, at its left (0) or its right end (1)."""
    return theme.note(
        axes,
        text,
        (at, 1),
        offset=(0, 4),
        size=FONT - at,
        xycoords="axes fraction",
        ha="right" if at else "left",
        parse_math=False,
        weight=weight,
    )


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


def _around(figure: Figure, axes: Sequence[Axes], title: str, unit: str) -> None:
    """Add the title, the labels of the axes and one legend for all panels."""
    characters = int(WIDTH * 72 / ((FONT + 2) * 0.66))
    lines = "\n".join(broken(plain(title), characters))
    figure.suptitle(lines, x=0.01, ha="left", fontsize=FONT + 2, weight="bold", color=INK, parse_math=False)
    figure.supylabel(f"live memory ({unit})", fontsize=FONT)
    axes[-1].set_xlabel("operators of the step, in their order", fontsize=FONT)
    theme.number_axis(axes[0].xaxis)
    theme.number_axis(axes[0].yaxis, most=4)
    theme.legend_below(figure, axes)
