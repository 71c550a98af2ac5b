"""Runs as one page that needs nothing but itself: knows nothing of files or of commands.

The page holds one style and one script, each allowed by its hash alone: nothing else can run, load or be sent.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from profiler.analysis import progress
from profiler.analysis.rows import rows
from profiler.core.errors import UserError
from profiler.runs.store import Run
from profiler.views.redaction import redacted
from profiler.views.report.parts import Found, agreement, compared, parts
from profiler.views.report.section import Limits
from profiler.views.tables.columns import groups

MOST_BYTES = 600_000
LIMITS = (  # the first with which the page is small enough
    Limits(sections=40, rows=400, lines=40, samples=200, timelines=3),
    Limits(sections=40, rows=400, lines=40, samples=200, timelines=1),
    Limits(sections=24, rows=150, lines=24, samples=60, timelines=1),
    Limits(sections=12, rows=60, lines=12, samples=30, timelines=1),
    Limits(sections=6, rows=30, lines=8, samples=20, timelines=1),
)


def render(runs: Sequence[Run], *, redact: str = "default") -> bytes:
    """The whole page in UTF-8, less than 600 kB: of very large runs it leaves out rows, and says so.

    `redact` is default, all or none. Raises UserError where there is no record at all.
    """
    if not any(run.records for run in runs):
        raise UserError("nothing to report: there is no record yet", hint="`gcprof run --resume` goes on with a run")
    found = [
        Found(
            run=shown,
            groups=tuple(tuple(group) for group in groups(rows(shown.records))),
            num_owed=len(progress.owed(run.manifest.plan, run.records)),
        )
        for run, shown in zip(runs, redacted(runs, level=redact), strict=True)
    ]
    for limits in LIMITS:
        page = _page(found, limits, redact)
        if len(page) < MOST_BYTES:
            break
    return page


def _page(found: Sequence[Found], limits: Limits, redact: str) -> bytes:
    shown = parts(found, limits)
    loader = PackageLoader("profiler.views", "report")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style, script = _source("style.css"), _source("script.js")
    text = environment.get_template("page.html").render(
        parts=shown,
        num_runs_left_out=len(found) - len(shown),
        compared=compared(shown, found),
        agreement=agreement(shown),
        redact=redact,
        style=Markup(style),  # ours, and its hash is what allows it
        script=Markup(script),
        policy=policy(style, script),
    )
    return text.encode()


def policy(style: str, script: str) -> str:
    """What the page may do: apply this style and run this script, and nothing else."""
    return (
        f"default-src 'none'; style-src 'sha256-{_digest(style)}'; script-src 'sha256-{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _source(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
