"""Runs -> the parts of a page: every run with its sections, and all of them in brief. Knows nothing of templates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from profiler.analysis.rows import Row
from profiler.core.units import MISSING, count_text
from profiler.runs.store import Run
from profiler.views.report.grids import Grid, Head, short
from profiler.views.report.section import Limits, Section, section
from profiler.views.sanitize import plain
from profiler.views.tables.columns import device, setting
from profiler.views.tables.explanation import shortened

LONGEST_NAME, LONGEST_COMMAND = 80, 2000  # letters
LONGEST_MODEL = 60
NUM_NAMED = 3  # strategies that all runs together are said to take


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One run: its sections, and what they share."""

    anchor: str
    name: str
    created: str
    command: str
    remarks: tuple[str, ...]  # what one should know before reading on
    sections: tuple[Section, ...]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it may be shown, its rows in groups, and how many of its trials are not there yet."""

    run: Run
    groups: tuple[tuple[Row, ...], ...]
    num_owed: int


def parts(runs: Sequence[Found], limits: Limits) -> tuple[Part, ...]:
    """Every run with as many of its sections as there is room for: the first ones."""
    found, room = [], limits.sections
    for number, one in enumerate(runs, start=1):
        shown = one.groups[:room]
        room -= len(shown)
        found.append(_part(one, shown, f"run-{number}", limits))
    return tuple(found[: max(limits.sections, 1)])


def compared(shown: Sequence[Part], runs: Sequence[Found]) -> Grid | None:
    """A line for each section, where there are several."""
    lines = []
    for part, one in zip(shown, runs, strict=False):
        for rows, its in zip(one.groups, part.sections, strict=False):
            model = shortened(plain(rows[0].case.model), LONGEST_MODEL)
            what = ", ".join([model, *setting(rows)])
            lines.append((f"#{its.anchor}", part.name, what, short(device(rows)), *its.brief))
    heads = ("run", "what", "device", "peak of none", "take", "its peak", "time against none")
    named = tuple(Head(text=text, is_number=text in heads[3:] and text != "take") for text in heads)
    return Grid(caption="All in brief", heads=named, lines=tuple(lines)) if len(lines) > 1 else None


def agreement(shown: Sequence[Part]) -> str:
    """Whether the sections advise the same strategy."""
    taken = Counter(its.brief[1] for part in shown for its in part.sections if its.brief[1] != MISSING)
    if not taken:
        return "Nothing here has a peak, so there is nothing to take."
    if len(taken) == 1:
        return f"All that can be compared say the same: {next(iter(taken))}."
    named = [f"{name} ({number} of {taken.total()})" for name, number in taken.most_common(NUM_NAMED)]
    more = f" and {len(taken) - NUM_NAMED} more" if len(taken) > NUM_NAMED else ""
    return f"They do not all say the same: {', '.join(named)}{more}."


def _part(one: Found, shown: Sequence[tuple[Row, ...]], anchor: str, limits: Limits) -> Part:
    manifest = one.run.manifest
    rows = [row for group in one.groups for row in group]
    sections = [
        section(group, all_rows=rows, anchor=f"{anchor}-{number}", limits=limits)
        for number, group in enumerate(shown, start=1)
    ]
    left_out = len(one.groups) - len(shown)
    owed = [f"{count_text(one.num_owed, 'trial')} of this run not there yet"] if one.num_owed else []
    more = [f"{count_text(left_out, 'group')} of rows left out, so that this page stays small"] if left_out else []
    return Part(
        anchor=anchor,
        name=shortened(plain(one.run.folder.name), LONGEST_NAME),
        created=plain(manifest.created),
        command=shortened(plain(manifest.command), LONGEST_COMMAND),
        remarks=(*(plain(warning) for warning in one.run.warnings), *owed, *more),
        sections=tuple(sections),
    )
