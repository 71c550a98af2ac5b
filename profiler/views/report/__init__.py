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
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from profiler.analysis import progress
from profiler.analysis.rows import Row, rows
from profiler.core.errors import UserError
from profiler.core.units import MISSING, bytes_text, count_text, few
from profiler.runs.store import Run
from profiler.scripts.records import variants
from profiler.scripts.report import name_of
from profiler.views.report.section import PageLimits, prediction_pairs, script_frontier, section
from profiler.views.sanitize import plain, redacted, short
from profiler.views.tables import Table, of_lines
from profiler.views.tables.columns import device, groups, setting
from profiler.views.tables.script import explained, held_table, process_table, sentence, summary

MOST_PROCESSES = 200  # of a run of a script
LONGEST_NAME, LONGEST_COMMAND, LONGEST_MODEL, LONGEST_CELL = 80, 2000, 60, 100  # letters
NUM_NAMED = 3  # strategies that the summary of all runs names

MOST_BYTES = 600_000
LIMITS = (  # the first ones with which the page is small enough are used
    PageLimits(sections=40, drawn=6, frontiers=12, rows=400, lines=40, samples=200, timelines=3),
    PageLimits(sections=24, drawn=3, frontiers=12, rows=150, lines=24, samples=60, timelines=1),
    PageLimits(sections=6, drawn=2, frontiers=6, rows=30, lines=8, samples=20, timelines=1),
)


def render(runs: Sequence[Run], *, redact: str = "default") -> bytes:
    """Return the page in UTF-8. Rows of large runs are left out to keep it below 600 kB, and the page says so.

    `redact` is default, all or none. Raises UserError if no run has a record.
    """
    if not any(run.records for run in runs):
        raise UserError("nothing to report: there is no record yet", hint="`gcprof run --resume` goes on with a run")
    shown = [
        (run, groups(rows(run.records)), len(progress.owed(stored.manifest.plan, stored.records)))
        for stored, run in zip(runs, redacted(runs, level=redact), strict=True)
    ]
    for limits in LIMITS:
        shown_parts = parts(shown, limits)
        page = filled(
            "page.html",
            script=source("script.js"),
            parts=shown_parts,
            num_runs_left_out=len(shown) - len(shown_parts),
            compared=compared(shown_parts),
            agreement=agreement(shown_parts),
            redact=redact,
            hidden="options of models",
        )
        if len(page) < MOST_BYTES:
            break
    return page


def filled(template: str, *, script: str, **values: object) -> bytes:
    """Return a template of this folder as a page in UTF-8, with our style and this script of ours."""
    loader = PackageLoader("profiler.views", "report")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(cell=lambda text: short(text, LONGEST_CELL), bytes=bytes_text)
    style = source("style.css")
    own = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    allowed = (
        f"style-src 'sha256-{own[0]}'; script-src 'sha256-{own[1]}'"  # this style and this script, and nothing else
    )
    page = environment.get_template(template).render(
        **values,
        style=Markup(style),  # ours; the policy allows it by its hash
        script=Markup(script),
        policy=f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'",
    )
    return page.encode()


def source(name: str) -> str:
    """Return the text of a file of the page."""
    return (files(__package__) / name).read_text(encoding="utf-8")


def parts(runs: Sequence[tuple[Run, list[list[Row]], int]], limits: PageLimits) -> list[dict[str, Any]]:
    """Return the runs with their first sections, as many as the limits allow in all.

    Of each run are given its groups of rows, and how many of its trials are still to be run.
    """
    run_parts, num_shown = [], 0
    for number, (run, run_groups, num_owed) in enumerate(runs[: max(limits.sections, 1)], start=1):
        pairs = prediction_pairs(row for group in run_groups for row in group)
        sections = []
        for at, group in enumerate(run_groups[: limits.sections - num_shown], start=1):
            made = section(group, pairs=pairs, anchor=f"run-{number}-{at}", limits=limits, number=num_shown + at - 1)
            title = ", ".join([short(group[0].case.model, LONGEST_MODEL), *setting(group)])
            sections.append({**made, "group_title": title, "device": device(group)})
        num_shown += len(sections)
        left_out = len(run_groups) - len(sections)
        still = f"still to run: {count_text(num_owed, 'trial')}; `gcprof run --resume` runs what is left"
        owed = [still] if num_owed else []
        more = [f"{count_text(left_out, 'group')} of rows left out, so that this page stays small"] if left_out else []
        run_parts.append({**_about(run, *owed, *more), "anchor": f"run-{number}", "sections": sections})
    return run_parts


def _about(run: Run, *remarks: str) -> dict[str, Any]:
    """Return what the page says of any run."""
    return {
        "name": short(run.folder.name, LONGEST_NAME),
        "created": plain(run.manifest.created),
        "command": short(run.manifest.command, LONGEST_COMMAND),
        "remarks": [*map(plain, run.warnings), *remarks],
    }


def compared(shown: Sequence[dict[str, Any]]) -> Table | None:
    """Return the summary, one line per section, which begins with its anchor; None if there are fewer than two."""
    lines = [
        (f"#{its['anchor']}", part["name"], its["group_title"], its["device"], *its["brief"])
        for part in shown
        for its in part["sections"]
    ]
    heads = ["anchor", "run", "what", "device", "peak of none", "take", "its peak", "time against none"]
    is_timed = any(its["evidence"] != "rehearsed" for part in shown for its in part["sections"])
    heads = heads if is_timed else heads[:-1]
    numbers = ("peak of none", "its peak", "time against none")
    columns = of_lines(heads, [line[: len(heads)] for line in lines], numbers=numbers)
    return Table(title="All in brief", columns=columns) if len(lines) > 1 else None


def agreement(shown: Sequence[dict[str, Any]]) -> str:
    """Return a sentence on whether the sections advise the same strategy, and how many have a peak at all."""
    advised = [its["brief"][1] for part in shown for its in part["sections"]]
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


def render_scripts(runs: Sequence[Run], *, redact: str = "default") -> bytes:
    """Return the page in UTF-8; `redact` is default, all or none. Raises UserError if no run has a record."""
    if not any(run.records for run in runs):
        raise UserError("nothing to report: there is no record yet", hint="run the command again")
    parts = list[dict[str, Any]]()
    for run in redacted(runs, level=redact):
        found = variants(run.records)
        num = sum(len(variant.processes) for variant in found)
        left_out = [f"only {MOST_PROCESSES} of {num} processes are shown"] if num > MOST_PROCESSES else []
        is_cut = ["the command was ended from outside"] if run.status == "partial" else []
        shown = [
            {
                "name": plain(name_of(variant)),
                "sentence": plain(sentence(variant, found)),
                "evidence": "rehearsed, not measured" if variant.gpu else "measured",
                "processes": [
                    {
                        "table": process_table([process], variant.processes),
                        "held": held_table(process),
                        "lines": [*map(plain, explained([process], variant.processes))],
                        "peaks": [phase.peak_bytes or 0 for phase in process.phases],
                        "most": process.reserved_bytes or process.peak_bytes or 0,
                    }
                    for process in variant.processes[:MOST_PROCESSES]
                ],
            }
            for variant in found
        ]
        largest = [variant.largest if variant.processes else None for variant in found]
        peaks = [one.peak_bytes or 0 if one else 0 for one in largest]
        most = max((one.reserved_bytes or one.peak_bytes or 0 for one in largest if one), default=0)
        drawn = script_frontier(found, f"run-{len(parts)}")
        whole = {"table": summary(found), "peaks": peaks, "most": most, "picture": drawn} if len(found) > 1 else None
        parts.append({**_about(run, *is_cut, *left_out), "summary": whole, "variants": shown})
    return filled("script.html", script="", parts=parts, redact=redact, hidden="lines")
