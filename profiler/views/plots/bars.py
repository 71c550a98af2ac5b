"""Plots of bars: peaks, steps and time samples by strategy; the memory of a script by phase, and over its phases."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import ceil, nan
from operator import attrgetter
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from profiler.analysis.live_bytes import CATEGORIES, categories
from profiler.analysis.rows import Row
from profiler.core.errors import UserError
from profiler.core.units import byte_unit, scaled, second_unit
from profiler.scripts.report import Process, Variant, name_of, phase_name
from profiler.views.plots import MOST, Plot, alike, picture, theme, write
from profiler.views.plots.theme import BLUE, FONT, GREEN, GREY, INK, ORANGE, SKY, USUAL, VERMILLION, Style, sized
from profiler.views.sanitize import plain, short
from profiler.views.tables.columns import change, marked, outcome, ratio_text
from profiler.views.tables.details import samples_of

WIDTH = 9.0  # inches
BAR_INCHES, CROWDED_BAR_INCHES, CROWD = 0.36, 0.26, 14  # a bar with its gap; the smaller one for more than CROWD bars
THICK = 0.72  # of the height for a bar and its gap
TIME_PARTS = (("forward", BLUE), ("backward", ORANGE), ("optimizer", GREEN))
BAND = 0.3  # half the height over which the samples of a row are laid out
MOST_DOTS = 200  # of a strategy

PHASE_INCHES, AROUND, POINTS_INCHES = (
    0.3,
    1.0,
    2.6,
)  # of a bar of a script's phase, around them, and of a panel of points
PHASES_THICK = 0.8  # of the height for the bars of a phase
COLOURS = (BLUE, ORANGE, GREY, SKY, VERMILLION, INK)  # of the variants of a script
LINES = {"reserved": ("reserved", GREY, "s"), "peak": ("peak", BLUE, "o"), "live": ("live at its end", ORANGE, "v")}
LONGEST = 60  # letters of a name
Shown = list[tuple[Variant, Process]]


def _memory(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> None:
    """Draw one bar per row, with its peak and the change against `none` beside it."""
    drawn = {at: row for at, row in enumerate(rows) if row.has_peak}
    size, unit = byte_unit(row.readings.peak_bytes for row in drawn.values())
    parts_of = {
        at: {part.name: part.nbytes for part in categories(row.readings)} or {"": row.readings.peak_bytes or 0}
        for at, row in drawn.items()
    }
    ends = dict.fromkeys(drawn, 0)
    for category in (*CATEGORIES, ""):
        label, colour = "peak, parts not measured", SKY
        if category:
            label, colour = theme.WORDS.get(category, category), theme.COLOURS[category]
        own = {at: parts[category] / size for at, parts in parts_of.items() if category in parts}
        if own:
            lefts = [ends[at] / size for at in own]
            axes.barh(list(own), list(own.values()), left=lefts, height=THICK, color=colour, linewidth=0)
            theme.legend_square(axes, label, colour)
            ends = {at: end + parts_of[at].get(category, 0) for at, end in ends.items()}
    for at, row in drawn.items():
        text = f"{scaled(row.readings.peak_bytes, size)}  {change(row, row.peak_ratio)}".rstrip()
        theme.note(axes, text, (ends[at] / size, at), offset=(5, 0), va="center")
    floors = {at: row.static_bytes / size for at, row in drawn.items() if row.static_bytes is not None}
    if floors:  # equal ones make one long line
        low, high = [at - 0.5 for at in floors], [at + 0.5 for at in floors]
        axes.vlines(list(floors.values()), low, high, color=INK, linewidth=sized(1.6), label="floor: all static memory")
    axes.set_xlim(0, 1.2 * max(ends.values()) / size)
    _named(axes, rows, drawn, f"{marked('memory at the peak of the step', rows)} ({unit})")


def _has_time(row: Row) -> bool:
    return row.outcome == "ok" and row.step_seconds is not None


def _time(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> None:
    """Draw one bar per row, made of the phases' medians; a dot and its error bar are the step's median and spread."""
    drawn = {at: row for at, row in enumerate(rows) if _has_time(row)}
    size, unit = second_unit(row.shown_seconds for row in drawn.values())
    scales = {at: (row.shown_seconds or 0) / row.step_seconds if row.step_seconds else 1 for at, row in drawn.items()}
    ends = dict.fromkeys(drawn, 0.0)
    for part, colour in TIME_PARTS:
        samples = {at: samples_of(row, part) for at, row in drawn.items()}
        long = [median(samples[at]) / size * scales[at] if samples[at] else 0.0 for at in drawn]
        axes.barh(list(drawn), long, left=list(ends.values()), height=THICK, color=colour, label=part)
        ends = {at: end + more for (at, end), more in zip(ends.items(), long, strict=True)}
    steps = {at: (row.shown_seconds or 0) / size for at, row in drawn.items()}
    halves = {at: steps[at] * (row.step_spread or 0) for at, row in drawn.items()}
    axes.errorbar(
        list(steps.values()), list(drawn), xerr=list(halves.values()), fmt="o", color=INK, markersize=sized(4),
        capsize=sized(3), elinewidth=sized(1.3), label="step: median and half the interquartile range",
    )  # fmt: skip
    for at, row in drawn.items():
        ends[at] = max(ends[at], steps[at] + halves[at])
        against = ratio_text(row) if row.time and row.case.label != "none" else ""
        text = f"{scaled(row.shown_seconds, size)}  {against}".rstrip()
        theme.note(axes, text, (ends[at], at), offset=(7, 0), va="center")
    axes.set_xlim(0, 1.2 * max(ends.values()))
    _named(axes, rows, drawn, f"time ({unit})")


def _has_samples(row: Row) -> bool:
    return row.outcome == "ok" and bool(samples_of(row, "step"))


def _samples(axes: Axes, rows: Sequence[Row], among: Sequence[Row]) -> None:
    """Draw one dot per sample, the first on top, and a line at the median."""
    drawn = {at: row for at, row in enumerate(rows) if _has_samples(row)}
    seconds = [second for row in drawn.values() for second in samples_of(row, "step")]
    size, unit = second_unit(seconds)
    low, high = min(seconds) / size, max(seconds) / size
    margin = 0.06 * (high - low) or 0.05 * high or 1
    axes.set_xlim(low - margin, high + margin)
    for at, row in drawn.items():
        samples = _thinned(samples_of(row, "step"))
        gap = 2 * BAND / max(1, len(samples) - 1)
        ys = [at - BAND + gap * index if len(samples) > 1 else at for index in range(len(samples))]
        xs = [sample / size for sample in samples]
        dots = {"s": theme.area(22), "color": BLUE, "alpha": 0.8, "linewidths": 0, "zorder": 3}
        axes.scatter(xs, ys, label="one step (the first on top, the rounds in order)", **dots)  # type: ignore[arg-type]
        middle, ends = (row.step_seconds or 0) / size, (at - BAND - 0.1, at + BAND + 0.1)
        axes.plot([middle, middle], ends, color=INK, linewidth=sized(2), zorder=2, label="median")
    _named(axes, rows, drawn, f"step time ({unit})")


def _thinned(samples: Sequence[float]) -> list[float]:
    """Return at most MOST_DOTS + 2 samples in their order: evenly chosen ones, the smallest and the largest."""
    every = max(1, ceil(len(samples) / MOST_DOTS))
    kept = {*range(0, len(samples), every), samples.index(min(samples)), samples.index(max(samples))}
    return [samples[at] for at in sorted(kept)]


def _named(axes: Axes, rows: Sequence[Row], drawn: dict[int, Row], label: str) -> None:
    """Label the axes, values across and strategies down, the first on top; say why a row is not drawn."""
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


def _height(rows: Sequence[Row], width: float) -> float:
    """Return the height in inches of a panel with one bar per row."""
    return 1.9 + len(rows) * (BAR_INCHES if len(rows) <= CROWD else CROWDED_BAR_INCHES)


MEMORY = Plot(panels=alike, has=attrgetter("has_peak"), height=_height, draw=_memory, needs="a peak", width=WIDTH)
TIME = Plot(panels=alike, has=_has_time, height=_height, draw=_time, needs="a step time", width=WIDTH)
SAMPLES = Plot(panels=alike, has=_has_samples, height=_height, draw=_samples, needs="a step time", width=WIDTH)


def script_bars(variants: Sequence[Variant], *, path: Path, force: bool = False, style: Style = USUAL) -> Path:
    """Draw a bar for the peak of each phase and variant, and a line at what it reserves, into a png, svg or pdf.

    Ranks and processes have a panel each, by their place. Raises UserError as `script_points` does.
    """

    def figure() -> Figure:
        shown = _shown(variants)
        places: dict[str, Shown] = {}
        for variant, process in shown:
            places.setdefault(process.label(variant.processes), []).append((variant, process))
        size, unit = byte_unit(_most(process) for _, process in shown)
        heights = [AROUND + PHASE_INCHES * len(_names(group)) * max(1.0, 0.6 * len(group)) for group in places.values()]
        panels = [partial(_bars, label=label, group=group, size=size, unit=unit) for label, group in places.items()]
        return picture(panels, heights, width=style.width or WIDTH)

    return write(figure, path=path, force=force, style=style)


def script_points(variants: Sequence[Variant], *, path: Path, force: bool = False) -> Path:
    """Draw peak, live and reserved memory of each phase in their order, with a panel for each process.

    Raises UserError for another suffix, for a file that exists, without `force`, and for too many processes.
    """

    def figure() -> Figure:
        shown = _shown(variants)
        size, unit = byte_unit(_most(process) for _, process in shown)
        panels = [
            partial(_points, variant=variant, process=process, size=size, unit=unit) for variant, process in shown
        ]
        return picture(panels, [POINTS_INCHES] * len(panels), width=WIDTH)

    return write(figure, path=path, force=force)


def _shown(variants: Sequence[Variant]) -> Shown:
    shown = [(variant, process) for variant in variants for process in variant.processes if process.phases]
    if not shown:
        raise UserError("nothing to draw: no process used a GPU", hint="`gcprof show` says what ran")
    if len(shown) > MOST:
        raise UserError(f"{len(shown)} processes are too many for one picture", hint="--to csv has them all")
    return shown


def _bars(axes: Axes, *, label: str, group: Shown, size: int, unit: str) -> None:
    names = _names(group)
    thick = PHASES_THICK / len(group)
    for number, (variant, process) in enumerate(group):
        colour = COLOURS[number % len(COLOURS)]
        for phase in process.phases:
            at = names.index(phase_name(phase)) + (number - (len(group) - 1) / 2) * thick
            peak = (phase.peak_bytes or 0) / size
            axes.barh(at, peak, height=thick * 0.9, color=colour)
            if phase.reserved_bytes is not None:
                edges = [at - thick / 2, at + thick / 2]
                axes.plot([phase.reserved_bytes / size] * 2, edges, color=INK, linewidth=sized(1))
            if len(group) <= len(COLOURS):
                theme.note(axes, scaled(phase.peak_bytes, size), (peak, at), offset=(3, 0), size=FONT - 3, va="center")
        theme.legend_square(axes, short(plain(name_of(variant)), LONGEST), colour)
    axes.set_yticks(range(len(names)), [plain(name) for name in names])
    axes.grid(visible=False, axis="y")
    axes.set(ylim=(len(names) - 0.4, -0.6), xlim=(0, 1.12 * max(_most(process) for _, process in group) / size))
    variant, process = group[0]
    _title(axes, process.module or "no model", label)
    reserved = "" if process.reserved_bytes is None else ", and a line at what is reserved"
    axes.set_xlabel(f"{'rehearsed' if variant.gpu else 'measured'} memory by phase: peak{reserved} ({unit})")


def _names(group: Shown) -> list[str]:
    """Return the names of all phases, in the order of the process that has most."""
    ordered = sorted((process for _, process in group), key=lambda process: -len(process.phases))
    return list(dict.fromkeys(phase_name(phase) for process in ordered for phase in process.phases))


def _points(axes: Axes, *, variant: Variant, process: Process, size: int, unit: str) -> None:
    for name, (label, colour, marker) in LINES.items():
        sizes = [getattr(phase, f"{name}_bytes") for phase in process.phases]
        taken = [nan if size_bytes is None else size_bytes / size for size_bytes in sizes]
        axes.plot(range(len(taken)), taken, marker=marker, color=colour, label=label, linewidth=sized(1))
    peak, at = process.peak, process.phases.index(process.peak)
    text = " ".join(filter(None, (scaled(peak.peak_bytes, size), plain(peak.line))))
    side = "right" if at > len(process.phases) / 2 else "left"
    theme.note(axes, text, (at, (peak.peak_bytes or 0) / size), offset=(0, 6), size=FONT - 2, ha=side)
    names = [plain(phase_name(phase)) for phase in process.phases]
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=sized(FONT - 3))
    axes.grid(visible=False, axis="x")
    axes.set(ylim=(0, 1.25 * _most(process) / size), ylabel=unit)
    _title(axes, process.module, process.label(variant.processes), name_of(variant))


def _title(axes: Axes, *words: str) -> None:
    axes.set_title(short(plain(", ".join(filter(None, words))), LONGEST), fontsize=sized(FONT))


def _most(process: Process) -> int:
    """Return the most bytes that are drawn of a process; 1 where nothing was measured."""
    return process.reserved_bytes or process.peak_bytes or 1
