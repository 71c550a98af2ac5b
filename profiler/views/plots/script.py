"""The memory of a script by phase: bars for each variant, and points in the order of the phases."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import nan
from pathlib import Path

from matplotlib.axes import Axes

from profiler.core.errors import UserError
from profiler.core.units import byte_unit, scaled
from profiler.scripts.report import Process, Variant, name_of, phase_name
from profiler.views.plots import theme
from profiler.views.plots.theme import BLUE, FONT, GREY, INK, ORANGE, SKY, USUAL, VERMILLION, Style, sized
from profiler.views.sanitize import plain, short

WIDTH = 9.0  # inches
BAR_INCHES, AROUND, POINTS_INCHES = 0.3, 1.0, 2.6
THICK = 0.8  # of the height for the bars of a phase
COLOURS = (BLUE, ORANGE, GREY, SKY, VERMILLION, INK)
LINES = {"reserved": ("reserved", GREY, "s"), "peak": ("peak", BLUE, "o"), "live": ("live at its end", ORANGE, "v")}
LONGEST = 60  # letters of a name
Shown = list[tuple[Variant, Process]]


def bars(variants: Sequence[Variant], *, path: Path, force: bool = False, style: Style = USUAL) -> Path:
    """Draw a bar for the peak of each phase and variant, and a line at what it reserves, into a png, svg or pdf.

    Ranks and processes have a panel each, by their place. Raises UserError as `points` does.
    """
    theme.refuse(path, force=force)
    places: dict[str, Shown] = {}
    for variant, process in _shown(variants):
        places.setdefault(process.label(variant.processes), []).append((variant, process))
    size, unit = byte_unit(_most(process) for group in places.values() for _, process in group)
    heights = [AROUND + BAR_INCHES * len(_names(group)) * max(1.0, 0.6 * len(group)) for group in places.values()]
    panels = [partial(_bars, label=label, group=group, size=size, unit=unit) for label, group in places.items()]
    with theme.at_work(style):
        figure = theme.picture(panels, heights, width=style.width or WIDTH)
    return theme.save(figure, path=path, force=force, style=style)


def points(variants: Sequence[Variant], *, path: Path, force: bool = False) -> Path:
    """Draw peak, live and reserved memory of each phase in their order, with a panel for each process.

    Raises UserError for another suffix, for a file that exists, without `force`, and for too many processes.
    """
    theme.refuse(path, force=force)
    shown = _shown(variants)
    size, unit = byte_unit(_most(process) for _, process in shown)
    panels = [partial(_points, variant=variant, process=process, size=size, unit=unit) for variant, process in shown]
    with theme.at_work(USUAL):
        figure = theme.picture(panels, [POINTS_INCHES] * len(panels), width=WIDTH)
    return theme.save(figure, path=path, force=force)


def _shown(variants: Sequence[Variant]) -> Shown:
    shown = [(variant, process) for variant in variants for process in variant.processes if process.phases]
    if not shown:
        raise UserError("nothing to draw: no process used a GPU", hint="`gcprof show` says what ran")
    if len(shown) > theme.MOST:
        raise UserError(f"{len(shown)} processes are too many for one picture", hint="--to csv has them all")
    return shown


def _bars(axes: Axes, *, label: str, group: Shown, size: int, unit: str) -> None:
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
