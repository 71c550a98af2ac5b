"""Runs as one self-contained HTML page: every run with its sections, and a summary of all.

The page's content security policy allows one style and one script, each by its hash: nothing else can run, load or be
sent.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from profiler.analysis import progress
from profiler.analysis.rows import Row, rows
from profiler.core.errors import UserError
from profiler.core.units import MISSING, count_text, few
from profiler.runs.store import Run
from profiler.views.redaction import redacted
from profiler.views.report.grids import Grid, Head, Twins, cell
from profiler.views.report.section import PageLimits, Section, section
from profiler.views.sanitize import plain, short
from profiler.views.tables.columns import groups, setting
from profiler.views.tables.evidence import device

LONGEST_NAME, LONGEST_COMMAND = 80, 2000  # letters
LONGEST_MODEL = 60
NUM_NAMED = 3  # strategies that the summary of all runs names

MOST_BYTES = 600_000
LIMITS = (  # the first ones with which the page is small enough are used
    PageLimits(sections=40, rows=400, lines=40, samples=200, timelines=3),
    PageLimits(sections=40, rows=400, lines=40, samples=200, timelines=1),
    PageLimits(sections=24, rows=150, lines=24, samples=60, timelines=1),
    PageLimits(sections=12, rows=60, lines=12, samples=30, timelines=1),
    PageLimits(sections=6, rows=30, lines=8, samples=20, timelines=1),
)


def render(runs: Sequence[Run], *, redact: str = "default") -> bytes:
    """Return the page in UTF-8. Rows of large runs are left out to keep it below 600 kB, and the page says so.

    `redact` is default, all or none. Raises UserError if no run has a record.
    """
    if not any(run.records for run in runs):
        raise UserError("nothing to report: there is no record yet", hint="`gcprof run --resume` goes on with a run")
    shown_runs = [
        ShownRun(
            run=shown,
            groups=tuple(tuple(group) for group in groups(rows(shown.records))),
            num_owed=len(progress.owed(run.manifest.plan, run.records)),
        )
        for run, shown in zip(runs, redacted(runs, level=redact), strict=True)
    ]
    for limits in LIMITS:
        page = _page(shown_runs, limits, redact)
        if len(page) < MOST_BYTES:
            break
    return page


def _page(shown_runs: Sequence[ShownRun], limits: PageLimits, redact: str) -> bytes:
    shown = parts(shown_runs, limits)
    loader = PackageLoader("profiler.views", "report")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style, script = source("style.css"), source("script.js")
    text = environment.get_template("page.html").render(
        parts=shown,
        num_runs_left_out=len(shown_runs) - len(shown),
        compared=compared(shown, shown_runs),
        agreement=agreement(shown),
        redact=redact,
        style=Markup(style),  # ours; the policy allows it by its hash
        script=Markup(script),
        policy=policy(style, script),
    )
    return text.encode()


def policy(style: str, script: str) -> str:
    """Return the content security policy of the page: it allows this style and this script, and nothing else."""
    return (
        f"default-src 'none'; style-src 'sha256-{_digest(style)}'; script-src 'sha256-{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def source(name: str) -> str:
    """Return the text of a file of the page."""
    return (files(__package__) / name).read_text(encoding="utf-8")


class RunPart(msgspec.Struct, frozen=True, kw_only=True):
    """One run: its sections, and what they share."""

    anchor: str
    name: str
    created: str
    command: str
    remarks: tuple[str, ...]  # warnings, and what is missing
    sections: tuple[Section, ...]


class ShownRun(msgspec.Struct, frozen=True, kw_only=True):
    """A redacted run, its rows in comparable groups, and how many of its trials are still to be run."""

    run: Run
    groups: tuple[tuple[Row, ...], ...]
    num_owed: int


def parts(runs: Sequence[ShownRun], limits: PageLimits) -> tuple[RunPart, ...]:
    """Return the runs with their first sections, as many as the limits allow in all."""
    run_parts, room = [], limits.sections
    for number, shown_run in enumerate(runs, start=1):
        shown = shown_run.groups[:room]
        room -= len(shown)
        run_parts.append(_part(shown_run, shown, f"run-{number}", limits))
    return tuple(run_parts[: max(limits.sections, 1)])


def compared(shown: Sequence[RunPart], runs: Sequence[ShownRun]) -> Grid | None:
    """Return the summary, one line per section; None if there are fewer than two."""
    lines = []
    for part, shown_run in zip(shown, runs, strict=False):
        for group, part_section in zip(shown_run.groups, part.sections, strict=False):
            model = short(group[0].case.model, LONGEST_MODEL)
            group_title = ", ".join([model, *setting(group)])
            lines.append((f"#{part_section.anchor}", part.name, group_title, cell(device(group)), *part_section.brief))
    is_timed = any(part_section.evidence != "rehearsed" for part in shown for part_section in part.sections)
    heads = ["run", "what", "device", "peak of none", "take", "its peak", *(["time against none"] if is_timed else [])]
    named = tuple(Head(text=text, is_number=text in heads[3:] and text != "take") for text in heads)
    cells = tuple(((anchor, *line[: len(heads)])) for anchor, *line in lines)
    return Grid(caption="All in brief", heads=named, lines=cells) if len(lines) > 1 else None


def agreement(shown: Sequence[RunPart]) -> str:
    """Return a sentence on whether the sections advise the same strategy, and how many have a peak at all."""
    advised = [part_section.brief[1] for part in shown for part_section in part.sections]
    taken = Counter(name for name in advised if name != MISSING)
    if not taken:
        return "Nothing here has a peak, so there is nothing to take."
    total = taken.total()
    if total == 1:
        return f"Only 1 of {len(advised)} has a peak: it says {next(iter(taken))}."
    them = f"{total}" if total == len(advised) else f"{total} of {len(advised)} that have a peak"
    if len(taken) == 1:
        return f"All {them} say the same: {next(iter(taken))}."
    named = [f"{name} ({number} of {total})" for name, number in taken.most_common()]
    return f"The {them} do not say the same: {few(named, NUM_NAMED)}."


def _part(shown_run: ShownRun, shown: Sequence[tuple[Row, ...]], anchor: str, limits: PageLimits) -> RunPart:
    manifest = shown_run.run.manifest
    twins = Twins(row for group in shown_run.groups for row in group)
    sections = [
        section(group, twins=twins, anchor=f"{anchor}-{number}", limits=limits)
        for number, group in enumerate(shown, start=1)
    ]
    left_out = len(shown_run.groups) - len(shown)
    owed = [f"{count_text(shown_run.num_owed, 'trial')} of this run not there yet"] if shown_run.num_owed else []
    more = [f"{count_text(left_out, 'group')} of rows left out, so that this page stays small"] if left_out else []
    return RunPart(
        anchor=anchor,
        name=short(shown_run.run.folder.name, LONGEST_NAME),
        created=plain(manifest.created),
        command=short(manifest.command, LONGEST_COMMAND),
        remarks=(*(plain(warning) for warning in shown_run.run.warnings), *owed, *more),
        sections=tuple(sections),
    )
