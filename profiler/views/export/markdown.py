"""The table as Markdown, and as a block to paste into an issue, which tells nothing of whose machine it was."""

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
    """A run as a Markdown file."""
    return table(rows(run.records)).encode()


def table(rows: Iterable[Row]) -> str:
    """One table for each group of rows, with the reasons and the notes as a list below it."""
    return "\n".join(
        page([f"### {escaped(heading(group))}", table_text(columns(group).all), bullets(below(group))])
        for group in groups(rows)
    )


def page(blocks: Iterable[str]) -> str:
    """Blocks below each other, without those in which nothing stands."""
    return "\n\n".join(filter(None, blocks)) + "\n"


def bullets(lines: Iterable[str]) -> str:
    """Texts as a list."""
    return "\n".join(f"- {escaped(line)}" for line in lines)


def table_text(columns: Sequence[Column]) -> str:
    """Columns as a table: the heads, the rule, the rows. Nothing without a column."""
    if not columns:
        return ""
    rule = "|" + "|".join(" ---: " if column.is_number else " --- " for column in columns) + "|"
    rows = [table_line([column.cells[row] for column in columns]) for row in range(len(columns[0].cells))]
    return "\n".join([table_line([column.label for column in columns]), rule, *rows])


def table_line(cells: Sequence[str]) -> str:
    """Texts as one line of a Markdown table."""
    return "| " + " | ".join(escaped(cell) for cell in cells) + " |"


def escaped(text: str) -> str:
    """The text on one line, shown by Markdown as it is."""
    return plain(text).translate(SPECIAL)


def run_block(run: Run) -> str:
    """The tables of a run, and below them the command and what it ran on."""
    (run,) = redacted([run], level="default")
    shown = rows(run.records)
    environments = [row.environment for row in shown if row.environment] or [run.manifest.environment]
    lines = [plain(run.manifest.command), *dict.fromkeys(map(_where, environments))]
    return f"{table(shown)}\n{fenced(lines)}\n"


def fenced(lines: Iterable[str]) -> str:
    """Returns lines as a block that Markdown shows as it is, whatever they hold."""
    text = "\n".join(lines)
    fence = "`" * max([3, *(len(ticks) + 1 for ticks in re.findall("`+", text))])
    return f"{fence}text\n{text}\n{fence}"


def _where(environment: Environment) -> str:
    """Names the device and the versions a run had, neither host nor user."""
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
