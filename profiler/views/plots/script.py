"""The memory of a script by phase: bars for each variant, and points in the order of the phases."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from profiler.core.errors import UserError
from profiler.core.script import Phase
from profiler.core.units import byte_unit, scaled
from profiler.scripts.report import Process, Variant, name_of, phase_name
from profiler.views.plots import theme
from profiler.views.plots.plot import DPI, MOST, USUAL, refuse, save
from profiler.views.plots.style import STYLES, Style, at_work, sized
from profiler.views.plots.theme import BLUE, FONT, GREY, INK, ORANGE, SKY, VERMILLION
from profiler.views.sanitize import plain, short

WIDTH = 9.0  # inches
BAR_INCHES, AROUND = 0.3, 1.0
THICK = 0.8  # of the height for the bars of a phase
COLOURS = (BLUE, ORANGE, GREY, SKY, VERMILLION, INK)
LONGEST = 60  # letters of a name


def bars(variants: Sequence[Variant], *, path: Path, force: bool = False, style: Style = USUAL) -> Path:
    """Draw a bar for the peak of each phase and variant, and a line at what it reserves, into a png, svg or pdf.

    Ranks and processes have a panel each, by their place. Raises UserError as `points` does.
    """
    refuse(path, force=force)
    with at_work(style):
        figure = _bars(_shown(variants), width=style.width or WIDTH)
    return save(figure, path=path, force=force, style=style)


def points(variants: Sequence[Variant], *, path: Path, force: bool = False) -> Path:
    """Draw peak, live and reserved memory of each phase in their order, with a panel for each process.

    Raises UserError for another suffix, for a file that exists, without `force`, and for too many processes.
    """
    refuse(path, force=force)
    with at_work(STYLES["default"]):
        figure = _points(_shown(variants))
    return save(figure, path=path, force=force)


def _shown(variants: Sequence[Variant]) -> list[tuple[Variant, Process]]:
    shown = [(variant, process) for variant in variants for process in variant.processes if process.phases]
    if not shown:
        raise UserError("nothing to draw: no process used a GPU", hint="`gcprof show` says what ran")
    if len(shown) > MOST:
        raise UserError(f"{len(shown)} processes are too many for one picture", hint="--to csv has them all")
    return shown


def _bars(shown: Sequence[tuple[Variant, Process]], *, width: float) -> Figure:
    places: dict[str, list[tuple[Variant, Process]]] = {}
    for variant, process in shown:
        places.setdefault(process.label(variant.processes), []).append((variant, process))
    heights = [AROUND + BAR_INCHES * len(_names(group)) * max(1.0, 0.6 * len(group)) for group in places.values()]
    figure, axes = _figure(heights, width)
    size, unit = byte_unit(_most(process) for _, process in shown)
    for panel, (label, group) in zip(axes, places.items(), strict=True):
        _bar_panel(panel, group, size)
        kinds = "rehearsed" if group[0][0].gpu else "measured"
        called = ", ".join(filter(None, (group[0][1].module or "no model", label)))
        panel.set_title(
            short(plain(called), LONGEST), loc="left", fontsize=sized(FONT), weight="bold", parse_math=False
        )
        reserved = "" if group[0][1].reserved_bytes is None else ", and a line at what is reserved"
        panel.set_xlabel(f"{kinds} memory by phase: peak{reserved} ({unit})")
    theme.legend_below(figure, axes)
    return figure


def _bar_panel(axes: Axes, group: Sequence[tuple[Variant, Process]], size: int) -> None:
    theme.plain_axes(axes, grid="x")
    names = _names(group)
    thick = THICK / len(group)
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
                text = scaled(phase.peak_bytes, size)
                theme.note(axes, text, (peak, at), offset=(3, 0), size=FONT - 3, va="center")
        theme.legend_square(axes, short(plain(name_of(variant)), LONGEST), colour)
    axes.set_yticks(range(len(names)), [plain(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 1.12 * max(_most(process) for _, process in group) / size)


def _names(group: Sequence[tuple[Variant, Process]]) -> list[str]:
    """Return the names of all phases, in the order of the process that has most."""
    ordered = sorted((process for _, process in group), key=lambda process: -len(process.phases))
    return list(dict.fromkeys(phase_name(phase) for process in ordered for phase in process.phases))


def _points(shown: Sequence[tuple[Variant, Process]]) -> Figure:
    figure, axes = _figure([2.6] * len(shown), WIDTH)
    size, unit = byte_unit(_most(process) for _, process in shown)
    for panel, (variant, process) in zip(axes, shown, strict=True):
        theme.plain_axes(panel, grid="y")
        drawn = (("reserved", GREY, "s"), ("peak", BLUE, "o"), ("live", ORANGE, "v"))
        for name, colour, marker in drawn:
            sizes = [getattr(phase, f"{name}_bytes") for phase in process.phases]
            taken = [nan if size_bytes is None else size_bytes / size for size_bytes in sizes]
            label = {"live": "live at its end", "peak": "peak", "reserved": "reserved"}[name]
            panel.plot(range(len(taken)), taken, marker=marker, color=colour, label=label, linewidth=sized(1))
        _mark(panel, process, process.peak, size)
        names = [phase_name(phase) for phase in process.phases]
        panel.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=sized(FONT - 3))
        panel.set_ylim(0, 1.25 * _most(process) / size)
        panel.set_ylabel(unit)
        called = ", ".join(filter(None, (process.module, process.label(variant.processes), name_of(variant))))
        panel.set_title(
            short(plain(called), LONGEST), loc="left", fontsize=sized(FONT), weight="bold", parse_math=False
        )
    theme.legend_below(figure, axes)
    return figure


def _mark(axes: Axes, process: Process, peak: Phase, size: int) -> None:
    """Write the line of the script above its peak."""
    at = process.phases.index(peak)
    text = " ".join(filter(None, (scaled(peak.peak_bytes, size), plain(peak.line))))
    side = "right" if at > len(process.phases) / 2 else "left"
    theme.note(axes, text, (at, (peak.peak_bytes or 0) / size), offset=(0, 6), size=FONT - 2, ha=side, parse_math=False)


def _most(process: Process) -> int:
    """Return the most bytes that are drawn of a process; 1 where nothing was measured."""
    return process.reserved_bytes or process.peak_bytes or 1


def _figure(heights: Sequence[float], width: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, sum(heights) + 0.4), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights).flat)
