"""Markdown export: the table of a run, and the same redacted to paste into an issue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from profiler.analysis.rows import Row, rows
from profiler.core.record import Environment
from profiler.core.units import bytes_text
from profiler.runs.store import Run
from profiler.views.redaction import redacted
from profiler.views.sanitize import plain
from profiler.views.tables.columns import below, columns, groups, heading
from profiler.views.tables.grid import Column

SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|#$~&"})


def render(run: Run) -> bytes:
    """Return a run as a Markdown file."""
    return table(rows(run.records)).encode()


def table(rows: Iterable[Row]) -> str:
    """Return one table per group of rows, with the reasons and the notes as a list below it."""
    return "\n".join(
        page([f"### {escaped(heading(group))}", table_text(columns(group).all), bullets(below(group))])
        for group in groups(rows)
    )


def page(blocks: Iterable[str]) -> str:
    """Return the blocks that are not empty, one below the other."""
    return "\n\n".join(filter(None, blocks)) + "\n"


def bullets(lines: Iterable[str]) -> str:
    """Return texts as a bullet list."""
    return "\n".join(f"- {escaped(line)}" for line in lines)


def table_text(columns: Sequence[Column]) -> str:
    """Return columns as a table: the heads, the rule, the rows. Empty without columns."""
    if not columns:
        return ""
    rule = "|" + "|".join(" ---: " if column.is_number else " --- " for column in columns) + "|"
    rows = [table_line([column.cells[row] for column in columns]) for row in range(len(columns[0].cells))]
    return "\n".join([table_line([column.label for column in columns]), rule, *rows])


def table_line(cells: Sequence[str]) -> str:
    """Return texts as one line of a Markdown table."""
    return "| " + " | ".join(escaped(cell) for cell in cells) + " |"


def escaped(text: str) -> str:
    """Return the text on one line, with Markdown's special characters escaped."""
    return plain(text).translate(SPECIAL)


def run_block(run: Run) -> str:
    """Return the tables of a run, redacted, and below them its command and environments."""
    (run,) = redacted([run], level="default")
    shown = rows(run.records)
    environments = [row.environment for row in shown if row.environment] or [run.manifest.environment]
    lines = [plain(run.manifest.command), *dict.fromkeys(map(_where, environments))]
    return f"{table(shown)}\n{fenced(lines)}\n"


def fenced(lines: Iterable[str]) -> str:
    """Return lines as a fenced code block, with a fence longer than any run of backticks in them."""
    text = "\n".join(lines)
    fence = "`" * max([3, *(len(ticks) + 1 for ticks in re.findall("`+", text))])
    return f"{fence}text\n{text}\n{fence}"


def _where(environment: Environment) -> str:
    """Return the device and the versions of a run in words, without host or user."""
    named = {
        "gcprof": environment.gcprof,
        "python": environment.python,
        "torch": environment.torch,
        "cuda": environment.cuda,
        "driver": environment.driver,
    }
    versions = [f"{name} {version}" for name, version in named.items() if version]
    size = [bytes_text(environment.device_bytes)] if environment.device_bytes else []
    device = [environment.device_name] if environment.device_name else []
    return plain(", ".join([*device, *size, *versions, environment.system]))
