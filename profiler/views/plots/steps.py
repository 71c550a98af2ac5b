"""Plots of steps: peaks, times and samples by strategy; live memory over a step; of a script, memory by phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil, nan
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import ScaledTranslation

from profiler.analysis import live_bytes
from profiler.analysis.live_bytes import CATEGORIES, categories
from profiler.analysis.rows import Row
from profiler.core.errors import UserError
from profiler.core.plan_file import strategy_label
from profiler.core.record import Timeline
from profiler.core.trace_data import Trace
from profiler.core.units import byte_unit, bytes_text, scaled, second_unit
from profiler.scripts.report import Process, Variant, name_of, phase_name
from profiler.views.plots import MOST, Plot, alike, picture, theme, write
from profiler.views.plots.theme import BLUE, FONT, GREEN, GREY, INK, ORANGE, SKY, USUAL, VERMILLION, Style, sized
from profiler.views.sanitize import plain, short
from profiler.views.tables.columns import change, marked, outcome, peak_name, ratio_text
from profiler.views.tables.details import samples_of
from profiler.views.tables.explanation import where
from profiler.views.tables.script import SIZES

WIDTH = 9.0  # inches
BAR_INCHES, CROWDED_BAR_INCHES, CROWD = 0.36, 0.26, 14  # a bar with its gap; the smaller one for more than CROWD bars
THICK = 0.72  # of the height for a bar and its gap
TIME_PARTS = (("forward", BLUE), ("backward", ORANGE), ("optimizer", GREEN))
BAND = 0.3  # half the height over which the samples of a row are laid out
MOST_DOTS = 200  # of a strategy

PHASE_INCHES, AROUND = 0.3, 1.0  # of a bar of a phase, and around them
PHASES_THICK = 0.8  # of the height for the bars of a phase
LETTER = 0.0125  # of the axis, of a number beside a bar
COLOURS = (BLUE, ORANGE, GREY, SKY, VERMILLION, INK)  # of the variants of a script
LONGEST = 60  # letters of a name
UNKNOWN = ("peak, parts not measured", SKY)
Parts = dict[tuple[str, str], dict[int, float]]  # of bars, with their colours, the lengths by place
Shown = list[tuple[Variant, Process]]


def _memory(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> None:
    """Draw one bar per row, with its peak and the change against `none` beside it."""
    drawn = {at: row for at, row in enumerate(rows) if row.has_peak}
    size, unit = byte_unit(row.readings.peak_bytes for row in drawn.values())
    looks = {name: (theme.WORDS.get(name, name), theme.COLOURS[name]) for name in CATEGORIES}
    parts: Parts = {look: {} for look in (*looks.values(), UNKNOWN)}
    for at, row in drawn.items():
        for part in categories(row.readings):
            parts[looks[part.name]][at] = part.nbytes / size
        if not categories(row.readings):
            parts[UNKNOWN][at] = (row.readings.peak_bytes or 0) / size
    ends = _stacked(axes, parts)
    floors = {at: row.static_bytes / size for at, row in drawn.items() if row.static_bytes is not None}
    if floors:  # equal ones make one long line
        low, high = [at - 0.5 for at in floors], [at + 0.5 for at in floors]
        axes.vlines(list(floors.values()), low, high, color=INK, linewidth=sized(1.6), label="floor: all static memory")
    said = {at: f"{scaled(row.readings.peak_bytes, size)}  {change(row, row.peak_ratio)}" for at, row in drawn.items()}
    _named(axes, rows, drawn, f"{marked('memory at the peak of the step', rows)} ({unit})", ends=ends, said=said)


def _time(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> None:
    """Draw one bar per row, made of the phases' medians; a dot and its error bar are the step's median and spread."""
    drawn = {at: row for at, row in enumerate(rows) if TIME.has(row)}
    size, unit = second_unit(row.shown_seconds for row in drawn.values())
    scales = {at: (row.shown_seconds or 0) / (row.step_seconds or 1) / size for at, row in drawn.items()}
    parts: Parts = {}
    for part, colour in TIME_PARTS:
        samples = {at: samples_of(row, part) for at, row in drawn.items()}
        parts[part, colour] = {at: median(seconds) * scales[at] for at, seconds in samples.items() if seconds}
    ends = _stacked(axes, parts)
    steps = {at: (row.shown_seconds or 0) / size for at, row in drawn.items()}
    halves = {at: steps[at] * (row.step_spread or 0) for at, row in drawn.items()}
    axes.errorbar(
        list(steps.values()), list(drawn), xerr=list(halves.values()), fmt="o", color=INK, markersize=sized(4),
        capsize=sized(3), elinewidth=sized(1.3), label="step: median and half the interquartile range",
    )  # fmt: skip
    said = {}
    for at, row in drawn.items():
        ends[at] = max(ends[at], steps[at] + halves[at])
        against = ratio_text(row) if row.time and row.case.label != "none" else ""
        said[at] = f"{scaled(row.shown_seconds, size)}  {against}"
    _named(axes, rows, drawn, f"time ({unit})", ends=ends, said=said)


def _stacked(axes: Axes, parts: Parts) -> dict[int, float]:
    """Draw the parts of bars after each other, and return the ends of the bars."""
    ends: dict[int, float] = defaultdict(float)
    for (label, colour), lengths in parts.items():
        lefts = [ends[at] for at in lengths]
        if lengths:
            axes.barh(list(lengths), list(lengths.values()), THICK, lefts, color=colour, linewidth=0, label=label)
        for at, length in lengths.items():
            ends[at] += length
    return ends


def _samples(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> None:
    """Draw one dot per sample, the first on top, and a line at the median."""
    drawn = {at: row for at, row in enumerate(rows) if SAMPLES.has(row)}
    seconds = [second for row in drawn.values() for second in samples_of(row, "step")]
    size, unit = second_unit(seconds)
    low, high = min(seconds) / size, max(seconds) / size
    margin = 0.06 * (high - low) or 0.05 * high or 1
    axes.set_xlim(low - margin, high + margin)
    for at, row in drawn.items():
        every = samples_of(row, "step")  # of many are drawn some, evenly chosen, the smallest and the largest
        some = {*range(0, len(every), ceil(len(every) / MOST_DOTS)), every.index(min(every)), every.index(max(every))}
        samples = [every[index] for index in sorted(some)]
        gap = 2 * BAND / max(1, len(samples) - 1)
        ys = [at - BAND + gap * index if len(samples) > 1 else at for index in range(len(samples))]
        xs = [sample / size for sample in samples]
        dots = {"s": theme.area(22), "color": BLUE, "alpha": 0.8, "linewidths": 0, "zorder": 3}
        axes.scatter(xs, ys, label="one step (the first on top, the rounds in order)", **dots)  # type: ignore[arg-type]
        middle, ends = (row.step_seconds or 0) / size, (at - BAND - 0.1, at + BAND + 0.1)
        axes.plot([middle, middle], ends, color=INK, linewidth=sized(2), zorder=2, label="median")
    _named(axes, rows, drawn, f"step time ({unit})")


def _named(
    axes: Axes, rows: Sequence[Row], drawn: dict[int, Row], label: str, *, ends: Mapping[int, float] = {},
    said: Mapping[int, str] = {},
) -> None:  # fmt: skip
    """Label the axes, values across and strategies down, the first on top; say why a row is not drawn."""
    for at, text in said.items():  # behind the end of its bar
        theme.note(axes, text.rstrip(), (ends[at], at), offset=(7, 0), va="center")
    if ends:
        axes.set_xlim(0, 1.2 * max(ends.values()))
    for at, row in enumerate(rows):
        if at not in drawn:
            text, where = outcome(row) if row.outcome != "ok" else "not measured", ("axes fraction", "data")
            theme.note(axes, text, (0, at), offset=(5, 0), color=GREY, xycoords=where, va="center", style="italic")
    axes.set_yticks(range(len(rows)), [theme.name(row) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    theme.number_axis(axes.xaxis)
    axes.set_xlabel(label)


_bar_plot = partial(
    Plot,
    panels=alike,
    height=lambda rows, width: 1.9 + len(rows) * (BAR_INCHES if len(rows) <= CROWD else CROWDED_BAR_INCHES),
    width=WIDTH,
)
MEMORY = _bar_plot(has=attrgetter("has_peak"), draw=_memory, needs="a peak")
TIME = _bar_plot(has=lambda row: row.outcome == "ok" and row.step_seconds is not None, draw=_time, needs="a step time")
SAMPLES = _bar_plot(
    has=lambda row: row.outcome == "ok" and bool(samples_of(row, "step")), draw=_samples, needs="a step time"
)


def script_phases(
    variants: Sequence[Variant], *, path: Path, force: bool = False, style: Style = USUAL, is_apart: bool = False
) -> Path:
    """Draw a bar for the peak of each phase, a line at what it reserves and a mark at what is live at its end.

    Ranks and processes have a panel each, by their place, and if `is_apart` so has each variant. Raises UserError for
    another suffix than png, svg or pdf, for a file that exists, without `force`, and for too many processes.
    """

    def figure() -> Figure:
        shown = [(variant, process) for variant in variants for process in variant.processes if process.phases]
        if not shown:
            raise UserError("nothing to draw: no process used a GPU", hint="`gcprof show` says what ran")
        if len(shown) > MOST:
            raise UserError(f"{len(shown)} processes are too many for one picture", hint="--to csv has them all")
        places: dict[tuple[str, ...], Shown] = {}
        for variant, process in shown:
            names = [process.label(variant.processes), *([name_of(variant)] if is_apart else [])]
            places.setdefault(tuple(names), []).append((variant, process))
        size, unit = byte_unit(_most(process) for _, process in shown)
        heights = [AROUND + PHASE_INCHES * len(_names(group)) * max(1.0, 0.6 * len(group)) for group in places.values()]
        panels = [partial(_bars, names=names, group=group, size=size, unit=unit) for names, group in places.items()]
        return picture(panels, heights, width=style.width or WIDTH)

    return write(figure, path=path, force=force, style=style)


def _bars(axes: Axes, *, names: Sequence[str], group: Shown, size: int, unit: str) -> None:
    phases, most = _names(group), max(_most(process) for _, process in group) / size
    thick = PHASES_THICK / len(group)
    for number, (variant, process) in enumerate(group):
        colour, shift = COLOURS[number % len(COLOURS)], (number - (len(group) - 1) / 2) * thick
        at = [phases.index(phase_name(phase)) + shift for phase in process.phases]
        taken = {
            name: [
                nan if (nbytes := getattr(phase, f"{name}_bytes")) is None else nbytes / size
                for phase in process.phases
            ]
            for name in SIZES
        }
        name = f", {short(plain(name_of(variant)), LONGEST)}" if len(group) > 1 else ""
        axes.barh(at, taken["peak"], height=thick * 0.9, color=colour, label=f"peak{name}")
        edges = [place - thick / 2 for place in at], [place + thick / 2 for place in at]
        axes.vlines(taken["reserved"], *edges, color=INK, linewidth=sized(1), label="reserved")
        axes.plot(taken["live"], at, "d", color="white", mec=INK, ms=sized(4), label="live at its end")
        if len(group) <= len(COLOURS):
            said = [scaled(phase.peak_bytes, size) for phase in process.phases]
            said[process.phases.index(process.peak)] += f" {plain(process.peak.line)}"
            for text, y, peak, reserved in zip(said, at, taken["peak"], taken["reserved"], strict=True):
                end = reserved if peak < reserved < peak + LETTER * len(text) * most else peak  # not across the line
                theme.note(axes, text, (end, y), offset=(3, 0), size=FONT - 3, va="center")
    axes.set_yticks(range(len(phases)), [plain(name) for name in phases])
    axes.grid(visible=False, axis="y")
    axes.set(ylim=(len(phases) - 0.4, -0.6), xlim=(0, 1.16 * most))
    variant, process = group[0]
    title = ", ".join(filter(None, (process.module or "no model", *names)))
    axes.set_title(short(plain(title), LONGEST), fontsize=sized(FONT))
    axes.set_xlabel(f"{'rehearsed' if variant.gpu else 'measured'} memory by phase ({unit})")


def _names(group: Shown) -> list[str]:
    """Return the names of all phases, in the order of the process that has most."""
    ordered = sorted((process for _, process in group), key=lambda process: -len(process.phases))
    return list(dict.fromkeys(phase_name(phase) for process in ordered for phase in process.phases))


def _most(process: Process) -> int:
    """Return the most bytes that are drawn of a process; 1 where nothing was measured."""
    return process.reserved_bytes or process.peak_bytes or 1


# ---- live memory over a step, by category

NUM_POINTS = 2000  # across a panel, about one a pixel
TIMELINE_WIDTH, TIMELINE_CROWD = 10.0, 5  # inches; panels are lower from this many strategies on
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


def timeline(traces: Mapping[str, Trace], *, title: str, path: Path, force: bool = False) -> Path:
    """Draw the traces, keyed by strategy, into a png, svg or pdf.

    Raises UserError for another suffix, for a file that exists, without `force`, and if there is nothing to draw.
    """
    return write(partial(draw_traces, traces, title=title), path=path, force=force)


def draw_traces(traces: Mapping[str, Trace], *, title: str) -> Figure:
    """Return a figure with one panel per trace, from top to bottom in the order of the mapping, with shared axes."""
    if not traces:
        raise UserError("nothing to draw: no strategy was traced", hint="name one with --strategies none")
    steps = [traced(name, trace) for name, trace in traces.items()]
    with theme.at_work(USUAL):
        return draw_steps(steps, title=title, along="operators of the step, in their order")


def draw_steps(steps: Sequence[Step], *, title: str, along: str) -> Figure:
    """Return a figure with one panel per step, with shared axes; `along` says what the places are."""
    size, unit = byte_unit(step.peak[1] for step in steps)
    inches, headroom = PANELS[len(steps) >= TIMELINE_CROWD]
    limits = {
        "xlim": (0, max(1, *(step.end for step in steps))),
        "ylim": (0, headroom * max(1, *(step.peak[1] for step in steps)) / size),
        "xlabel": along,
    }
    panels = [partial(_panel, step=step, size=size, unit=unit, limits=limits) for step in steps]
    return picture(panels, [inches] * len(steps), width=TIMELINE_WIDTH, title=title, is_shared=True, around=1.5)


def _panel(axes: Axes, *, step: Step, size: int, unit: str, limits: Mapping[str, object]) -> Callable[[], None]:
    """Draw one step: live memory, phases, peak. The returned function fits texts once the layout is final."""
    axes.set(**limits)
    axes.label_outer()
    axes.figure.supylabel(f"live memory ({unit})")
    axes.grid(visible=False, axis="x")
    theme.number_axis(axes.xaxis)
    theme.number_axis(axes.yaxis, most=4)
    # those that checkpointing does not change are at the bottom
    present = [category for category in theme.COLOURS if any(step.nbytes.get(category, ()))]
    least = LEAST * axes.get_ylim()[1] * size
    axes.stackplot(
        step.places,
        [[nbytes / size for nbytes in step.nbytes[category]] for category in present],
        colors=[theme.COLOURS[category] for category in present],
        labels=[theme.WORDS.get(name, name) if max(step.nbytes[name]) >= least else "_" for name in present],
        step="mid",
        linewidth=0,
    )
    labels = _phase_labels(axes, step)
    number, nbytes = step.peak
    mark = axes.plot([number], [nbytes / size], "v", color=INK, clip_on=False, label="peak")[0]
    mark.set_transform(mark.get_transform() + ScaledTranslation(0, 4 / 72, axes.figure.dpi_scale_trans))
    over = {"xycoords": "axes fraction", "offset": (0, 4)}
    name = theme.note(axes, short(step.name, theme.LONGEST_NAME), (0, 1), size=FONT, ha="left", weight="bold", **over)  # type: ignore[arg-type]
    peak = theme.note(axes, ": ".join(filter(None, (step.words, step.where))), (1, 1), ha="right", **over)  # type: ignore[arg-type]

    def finish() -> None:
        for label, first, last in labels:  # one that is wider than its phase goes, unless it is the last and has room
            left, right = axes.transData.transform([(first - 0.5, 0), (last - 0.5, 0)])[:, 0]
            width, end = label.get_window_extent().width, axes.get_window_extent().x1
            if width > right - left and (label is not labels[-1][0] or left + GAP + width > end):
                label.remove()
            elif width > right - left:
                label.xy = (first - 0.5, 1)
                label.set(position=(GAP * 72 / axes.figure.dpi, -2), horizontalalignment="left")
        if name.get_window_extent().x1 + GAP > peak.get_window_extent().x0:
            peak.set_text(step.words)

    return finish


def _phase_labels(axes: Axes, step: Step) -> list[tuple[Annotation, int, int]]:
    """Draw lines where phases begin, and shade recomputes; return the labels of non-empty phases with their ends."""
    ranges = [(first - 0.5, last - first + 1) for first, last in step.recomputes]
    if ranges:
        axes.broken_barh(ranges, (0, axes.get_ylim()[1]), color=SHADE, linewidth=0, zorder=0.4, label="recompute")
    labels = []
    for phase, first, last in step.phases:
        if last >= first:
            axes.axvline(first - 0.5, color=INK, linewidth=0.7, linestyle=(0, (2, 2)))
            at, edge, text = ((first + last) / 2, 1), ("data", "axes fraction"), plain(phase)
            label = theme.note(axes, text, at, offset=(0, -2), size=FONT - 2.5, xycoords=edge, ha="center", va="top")
            labels.append((label, first, last + 1))
    return labels
