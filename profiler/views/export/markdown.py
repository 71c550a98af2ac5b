"""The table as Markdown, and as a block to paste into an issue, which tells nothing of whose machine it was."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from profiler.analysis.rows import Row, rows
from profiler.core.record import Environment
from profiler.core.units import bytes_text
from profiler.runs.store import Run
from profiler.views.export import markdown
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
    return "\n".join(_group(group) for group in groups(rows))


def _group(rows: Sequence[Row]) -> str:
    shown = columns(rows).all
    remarks = [f"- {escaped(line)}" for line in below(rows)]
    lines = [f"### {escaped(heading(rows))}", "", *table_lines(shown), *([""] if remarks else [])]
    return "\n".join([*lines, *remarks, ""])


def table_lines(columns: Sequence[Column]) -> list[str]:
    """Columns as the lines of a Markdown table: the heads, the rule, the rows."""
    rule = "|" + "|".join(" ---: " if column.is_number else " --- " for column in columns) + "|"
    rows = [table_line([column.cells[row] for column in columns]) for row in range(len(columns[0].cells))]
    return [table_line([column.label for column in columns]), rule, *rows]


def table_line(cells: Sequence[str]) -> str:
    """Texts as one line of a Markdown table."""
    return "| " + " | ".join(escaped(cell) for cell in cells) + " |"


def escaped(text: str) -> str:
    """The text on one line, shown by Markdown as it is."""
    return plain(text).translate(SPECIAL)


def run_block(run: Run) -> str:
    """The tables of a run, and below them the command and what it ran on."""
    (run,) = redacted([run], level="default")
    table = rows(run.records)
    environments = [row.environment for row in table if row.environment] or [run.manifest.environment]
    lines = [plain(run.manifest.command), *dict.fromkeys(map(_where, environments))]
    return f"{markdown.table(table)}\n{fenced(lines)}\n"


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
