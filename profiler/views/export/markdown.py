"""Tables as Markdown, LaTeX and HTML: any tables, those of a run, and these redacted to paste into an issue."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from profiler.analysis.rows import Row, rows
from profiler.core.record import Environment
from profiler.core.units import bytes_text, count_text
from profiler.runs.store import Run
from profiler.scripts.records import variants
from profiler.views.redaction import redacted
from profiler.views.sanitize import plain
from profiler.views.tables import script
from profiler.views.tables.columns import group_table, groups, main
from profiler.views.tables.evidence import card
from profiler.views.tables.grid import Column, Table

SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|#$~&"})
LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "±": r"\ensuremath{\pm}",
    }
)
MOST = 100  # rows of a table in a notebook: more make it slow
DIM = ' style="opacity:0.5"'
NUMBER, WORDS = "padding:2px 8px;text-align:right;white-space:nowrap", "padding:2px 8px;text-align:left"


def tables(run: Run) -> list[Table]:
    """Return the tables of any run: a group of rows each, or of a script's a process each."""
    return script.tables(variants(run.records)) if run.is_script else main(rows(run.records))


def render(run: Run) -> bytes:
    """Return a run as a Markdown file."""
    return markdown(tables(run)).encode()


def render_latex(run: Run) -> bytes:
    """Return a run as a LaTeX file to be read by \\input."""
    return latex(tables(run)).encode()


def markdown(tables: Iterable[Table]) -> str:
    """Return tables below each other: of each its title, its lines above, its columns, and its lines below."""
    parts = []
    for table in tables:
        title = f"### {escaped(table.title)}" if table.title else ""
        parts += [title, bullets(table.above), _grid(table), bullets(table.below)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _grid(table: Table) -> str:
    if not table.columns:
        return ""
    rule = "|" + "|".join(" ---: " if column.is_number else " --- " for column in table.columns) + "|"
    return "\n".join([_line([column.label for column in table.columns]), rule, *map(_line, table.rows)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(escaped, cells)) + " |"


def bullets(lines: Iterable[str]) -> str:
    """Return texts as a bullet list."""
    return "\n".join(f"- {escaped(line)}" for line in lines)


def escaped(text: str) -> str:
    """Return the text on one line, with Markdown's special characters escaped."""
    return plain(text).translate(SPECIAL)


def latex(tables: Iterable[Table]) -> str:
    """Return tables with booktabs, their lines in small type below them."""
    head = "% needs \\usepackage{booktabs} and, for its width, \\usepackage{graphicx}"
    return "\n".join([head, *map(_latex, tables)])


def _latex(table: Table) -> str:
    def line(cells: Iterable[str]) -> str:
        return rf"{' & '.join(plain(cell).translate(LATEX) for cell in cells)} \\"

    heads = [cells for cells in zip(*(column.head for column in table.columns), strict=True) if any(cells)]
    texts = [rf"\par{{\footnotesize {plain(text).translate(LATEX)}}}" for text in (*table.above, *table.below)]
    if not table.columns:
        return "\n".join([*([rf"\par{{{plain(table.title).translate(LATEX)}}}"] if table.title else []), *texts, ""])
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{plain(table.title).translate(LATEX)}}}",
            r"\resizebox{\textwidth}{!}{%",
            rf"\begin{{tabular}}{{{''.join('r' if column.is_number else 'l' for column in table.columns)}}}",
            r"\toprule",
            *map(line, heads),
            r"\midrule",
            *map(line, table.rows),
            r"\bottomrule",
            r"\end{tabular}}",
            *texts,
            r"\end{table}",
            "",
        ]
    )


def html(tables: Iterable[Table], *, picture: bytes | None = None) -> str:
    """Return tables for a notebook, self-contained and without scripts, above an optional png; all text is escaped."""
    parts = []
    for table in tables:
        head = "".join(_cell("th", column, column.label) for column in table.columns)
        marks = table.marks or ("",) * len(table.columns[0].cells if table.columns else ())
        body = "".join(
            f"<tr{DIM if mark == 'invalid' else ''}>"
            f"{''.join(map(_cell, ['td'] * len(cells), table.columns, cells))}</tr>"
            for mark, cells in zip(marks, table.rows, strict=True)
        )
        parts += [f"<p><b>{_shown(table.title)}</b></p>"] if table.title else []
        parts += [_note(line) for line in table.above]
        if head:
            shown = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
            parts.append(f'<table style="border-collapse:collapse;font-size:13px">{shown}</table>')
        parts += [_note(line) for line in table.below]
    if picture:
        source = f"data:image/png;base64,{b64encode(picture).decode()}"
        parts.append(f'<img style="max-width:100%" alt="the same as a picture" src="{source}">')
    return f"<div>{''.join(parts)}</div>"


def run_html(rows: Sequence[Row], *, status: str) -> str:
    """Return every group of rows as a table for a notebook, with the reasons and the notes below it."""
    tables = []
    for group in groups(rows):
        table, more = group_table(group[:MOST]), len(group) - MOST
        below = [f"and {count_text(more, 'row')} more: to_pandas() holds them all"] if more > 0 else []
        tables.append(msgspec.structs.replace(table, below=(*table.below, *below)))
    return html([*tables, Table(below=(f"{count_text(len(rows), 'row')}, {status}",))])


def _cell(tag: str, column: Column, text: str) -> str:
    return f'<{tag} style="{NUMBER if column.is_number else WORDS}">{_shown(text)}</{tag}>'


def _note(text: str) -> str:
    return f'<div style="font-size:12px">{_shown(text)}</div>'


def _shown(text: str) -> str:
    return escape(plain(text))


def png(draw: Callable[[Path], object]) -> bytes:
    """Return the bytes of the picture that `draw` writes to a path."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "picture.png"
        draw(path)
        return path.read_bytes()


def run_block(run: Run) -> str:
    """Return the tables of any run, redacted, and below them its command and environments."""
    (run,) = redacted([run], level="default")
    environments = [record.environment for record in run.records if record.environment] or [run.manifest.environment]
    lines = [plain(run.manifest.command), *dict.fromkeys(map(_where, environments))]
    return f"{markdown(tables(run))}\n{fenced(lines)}\n"


def fenced(lines: Iterable[str]) -> str:
    """Return lines as a fenced code block, with a fence longer than any run of backticks in them."""
    text = "\n".join(lines)
    fence = "`" * max([3, *(len(ticks) + 1 for ticks in re.findall("`+", text))])
    return f"{fence}text\n{text}\n{fence}"


def _where(environment: Environment) -> str:
    """Return the device and the versions of a run in words, without host or user."""
    versions = [
        f"{name} {version}"
        for name in ("gcprof", "python", "torch", "cuda", "driver")
        if (version := getattr(environment, name))
    ]
    size = [bytes_text(environment.device_bytes)] if environment.device_bytes else []
    device = [card(environment.device_name)] if environment.device_name else []
    return plain(", ".join([*device, *size, *versions, environment.system]))
