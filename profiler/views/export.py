"""Runs for other programs and pages as files: CSV, JSON, Parquet, Markdown, LaTeX and HTML, and how a file is written.

Numbers are in base units. A row is a case, or of a script a phase. No cell can run as a formula in a spreadsheet.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shlex
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from profiler.analysis import progress
from profiler.analysis.rows import COLUMNS, Row, flat_row, rows
from profiler.core import safe_files
from profiler.core.case import encode
from profiler.core.errors import UserError, load_module
from profiler.core.record import SCHEMA, Record, evidence
from profiler.core.units import bytes_text, count_text
from profiler.runs.store import Run, refuse_link
from profiler.scripts.records import variants
from profiler.views.sanitize import plain, redacted
from profiler.views.tables import Column, Table, script
from profiler.views.tables.columns import card, group_table, groups, main
from profiler.views.tables.details import has_plane

FORMULA = tuple("=+-@＝＋－＠")  # a spreadsheet runs text that starts so as a formula; full-width too  # noqa: RUF001
SCRIPT_COLUMNS: dict[str, type] = {
    "command": str, "device": str, "strategy": str, "values": str, "evidence": str, "process": int, "rank": int,
    "model": str, "outcome": str, "detail": str, "num_steps": int, "phase": str, "is_first_step": bool,
    "first_step": int, "num": int, "peak_bytes": int, "live_bytes": int, "reserved_bytes": int, "line": str,
    "torch": str,
}  # fmt: skip


def lines_of(run: Run) -> tuple[dict[str, type], Iterable[dict[str, Any]]]:
    """Return the columns of a run with their types, and its lines: of a script its phases, else its rows."""
    if not run.is_script:
        return COLUMNS, map(flat_row, rows(run.records))
    lines = []
    for variant in variants(run.records):
        values = ",".join(f"{name}={text}" for name, text in variant.filled.items())
        for place, process in enumerate(variant.processes):
            for phase in process.phases:
                own = {
                    "command": " ".join(variant.command), "device": variant.words["device"],
                    "strategy": variant.words.get("strategy", "none"), "values": values,
                    "evidence": "rehearsed" if variant.gpu else "measured", "process": place,
                    "model": process.module, "phase": phase.name,
                }  # fmt: skip
                line = {
                    name: own[name] if name in own else getattr(phase if hasattr(phase, name) else process, name)
                    for name in SCRIPT_COLUMNS
                }
                lines.append(line)
    return SCRIPT_COLUMNS, lines


def render_csv(run: Run) -> bytes:
    """Return a run as a CSV file in UTF-8: bytes, median seconds, raw samples; what was not measured is empty."""
    return _written(*lines_of(run)).encode()


def csv_table(rows: Iterable[Row]) -> str:
    """Return a CSV line per row."""
    return _written(COLUMNS, map(flat_row, rows))


def _written(columns: Mapping[str, type], lines: Iterable[dict[str, Any]]) -> str:
    ways = [(name, WAYS.get(kind, lambda number: number)) for name, kind in columns.items()]
    cells = ([None if line[name] is None else way(line[name]) for name, way in ways] for line in lines)
    return csv_text([columns, *cells])


def csv_text(lines: Iterable[Iterable[Any]]) -> str:
    """Return lines of values as CSV text."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def safe(value: Any) -> Any:
    """Return a value as it is written: booleans in lower case, text on one line and never a formula.

    Text that a spreadsheet would run, or that begins with an apostrophe, gets an apostrophe in front, so that removing
    a leading apostrophe always restores the text.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.startswith((*FORMULA, "'")) else text


WAYS: dict[type, Callable[[Any], Any]] = {  # how values are written; numbers are unchanged
    str: lru_cache(maxsize=4096)(safe),  # most columns repeat a few values
    tuple: lambda samples: ";".join(map(repr, samples)),
    bool: safe,
}


def render_json(run: Run) -> bytes:
    """Return a run as one JSON document, with the exit code of its command."""
    code = progress.exit_code(run.records)
    if run.is_script:  # of one variant the script's own
        ends = variants(run.records)
        is_bad = any(end.outcome not in ("ok", "out_of_memory", "skipped") for end in ends)
        code = ends[0].exit_code if len(ends) == 1 else int(is_bad)
    return document(run.folder.name, run.records, status=run.status, exit_code=code)


def document(run_name: str | None, records: Iterable[Record], *, status: str, exit_code: int) -> bytes:
    """Return one JSON document. `status` is complete, partial or failed; `run_name` is None without a folder.

    Each record gets a field `evidence`, which stored records do not have.
    """
    shown = []
    for record in records:
        stored = {name: value for name, value in msgspec.structs.asdict(record).items() if value is not msgspec.UNSET}
        shown.append({**stored, "evidence": evidence(record.case, record.environment)})
    fields = {"schema": SCHEMA, "run": run_name, "status": status, "exit_code": exit_code, "records": shown}
    return encode(fields) + b"\n"


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


def render_markdown(run: Run) -> bytes:
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
        rule = "|".join(" ---: " if column.is_number else " --- " for column in table.columns)
        lines = ([column.label for column in table.columns], *table.rows)
        head, *cells = (f"| {' | '.join(map(escaped, line))} |" for line in lines)
        grid = "\n".join([head, f"|{rule}|", *cells]) if rule else ""
        parts += [title, bullets(table.above), grid, bullets(table.below)]
    return "\n\n".join(filter(None, parts)) + "\n"


def bullets(lines: Iterable[str]) -> str:
    """Return texts as a bullet list."""
    return "\n".join(f"- {escaped(line)}" for line in lines)


def escaped(text: str) -> str:
    """Return the text on one line, with Markdown's special characters escaped."""
    return plain(text).translate(SPECIAL)


def latex(tables: Iterable[Table]) -> str:
    """Return tables with booktabs, their lines in small type below them."""

    def line(cells: Iterable[str]) -> str:
        return rf"{' & '.join(plain(cell).translate(LATEX) for cell in cells)} \\"

    parts = ["% needs \\usepackage{booktabs} and, for its width, \\usepackage{graphicx}"]
    for table in tables:
        title = plain(table.title).translate(LATEX)
        heads = [cells for cells in zip(*(column.head for column in table.columns), strict=True) if any(cells)]
        if table.columns:
            parts += [
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{title}}}",
                r"\resizebox{\textwidth}{!}{%",
                rf"\begin{{tabular}}{{{''.join('r' if column.is_number else 'l' for column in table.columns)}}}",
                r"\toprule",
                *map(line, heads),
                r"\midrule",
                *map(line, table.rows),
                r"\bottomrule",
                r"\end{tabular}}",
            ]
        elif table.title:
            parts.append(rf"\par{{{title}}}")
        parts += [rf"\par{{\footnotesize {plain(text).translate(LATEX)}}}" for text in (*table.above, *table.below)]
        parts += [r"\end{table}", ""] if table.columns else [""]
    return "\n".join(parts)


def html(tables: Iterable[Table], *, picture: bytes | None = None) -> str:
    """Return tables for a notebook, self-contained and without scripts, above an optional png; all text is escaped."""

    def shown(text: str) -> str:
        return escape(plain(text))

    def notes(texts: Iterable[str]) -> list[str]:
        return [f'<div style="font-size:12px">{shown(text)}</div>' for text in texts]

    def line(tag: str, columns: Sequence[Column], texts: Sequence[str], mark: str = "") -> str:
        ways = [NUMBER if column.is_number else WORDS for column in columns]
        cells = (f'<{tag} style="{way}">{shown(text)}</{tag}>' for way, text in zip(ways, texts, strict=True))
        return f"<tr{DIM if mark == 'invalid' else ''}>{''.join(cells)}</tr>"

    parts = []
    for table in tables:
        parts += [f"<p><b>{shown(table.title)}</b></p>"] if table.title else []
        parts += notes(table.above)
        if table.columns:
            head = line("th", table.columns, [column.label for column in table.columns])
            marked = zip(table.rows, table.marks or ("",) * len(table.columns[0].cells), strict=True)
            body = "".join(line("td", table.columns, cells, mark) for cells, mark in marked)
            look = "border-collapse:collapse;font-size:13px"
            parts.append(f'<table style="{look}"><thead>{head}</thead><tbody>{body}</tbody></table>')
        parts += notes(table.below)
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
    lines = [plain(run.manifest.command)]
    for environment in dict.fromkeys(environments):
        versions = [(name, getattr(environment, name)) for name in ("gcprof", "python", "torch", "cuda", "driver")]
        named = [f"{name} {version}" for name, version in versions if version]
        size = [bytes_text(environment.device_bytes)] if environment.device_bytes else []
        device = [card(environment.device_name)] if environment.device_name else []
        lines.append(plain(", ".join([*device, *size, *named, environment.system])))
    lines = list(dict.fromkeys(lines))
    return f"{markdown(tables(run))}\n{fenced(lines)}\n"


def fenced(lines: Iterable[str]) -> str:
    """Return lines as a fenced code block, with a fence longer than any run of backticks in them."""
    text = "\n".join(lines)
    fence = "`" * max([3, *(len(ticks) + 1 for ticks in re.findall("`+", text))])
    return f"{fence}text\n{text}\n{fence}"


MANY = 6  # groups of rows at most, for a frontier.png


def write_whole(path: Path, text: bytes, *, force: bool = False) -> Path:
    """Write a file atomically; an existing one is replaced only with `force`.

    Raises UserError (exit code 2) if the file exists, and (74) if it cannot be written or is not regular.
    """
    refuse_output(path, force=force)
    safe_files.write(path, text)
    return path


def refuse_output(path: Path | None, *, force: bool = False, kinds: Sequence[str] = (), hint: str = "") -> None:
    """Raise UserError if an output file cannot be written, before the work whose result it would hold.

    The exit code is 2 for a file that exists, without `force`, or whose suffix is none of `kinds`, with this hint; 74
    for a missing folder, and with `force` for a file that is not regular.
    """
    if path is None:
        return
    if not os.path.isdir(path.parent):
        message = f"cannot write '{path}': there is no folder '{path.parent}'"
        raise UserError(message, hint=f"mkdir -p {shlex.quote(str(path.parent))}", exit_code=74)
    if not safe_files.is_replaceable(path):
        message = f"'{path}' is there already and is no regular file, which alone is replaced"
        raise UserError(message, hint="name another file", exit_code=74 if force else 2)
    if os.path.lexists(path) and not force:
        raise UserError(f"'{path}' is there already", hint="name another file, or overwrite it with --force")
    if kinds and path.suffix.lower() not in kinds:
        raise UserError(f"cannot write '{path.name}'", hint=hint)


def write_derived(run: Run) -> Iterator[Path]:
    """Write what is derived from a run, and yield each path: table.csv, table.md, then heat.png and frontier.png.

    heat.png needs two axes that vary, frontier.png rows with both peak and time, in at most MANY groups: each has a
    panel. Raises UserError if a file cannot be written (exit code 74), or if matplotlib is missing or broken (1).
    """
    folder, table = run.folder / "derived", rows(run.records)
    refuse_link(folder)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        message = f"cannot write to '{folder}': {error.strerror}"
        raise UserError(message, hint="it should be a folder", exit_code=74) from error
    yield write_whole(folder / "table.csv", csv_table(table).encode(), force=True)
    yield write_whole(folder / "table.md", markdown(main(table)).encode(), force=True)
    is_shown = any(row.outcome == "ok" and row.readings.peak_bytes is not None for row in table)
    has_frontier = any(row.on_frontier for row in table) and len(groups(table)) <= MANY
    for kind in [*["heat"] * (is_shown and has_plane(table)), *["frontier"] * has_frontier]:
        plots = load_module("profiler.views.plots", needs="matplotlib")
        yield plots.plot(table, kind=kind, path=folder / f"{kind}.png", force=True)


def render_parquet(run: Run) -> bytes:
    """Return a run as a Parquet file; null where nothing was measured. The types of the columns never change.

    Raises UserError if pyarrow is missing.
    """
    pa, parquet = load_module("pyarrow"), load_module("pyarrow.parquet")
    types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), tuple: pa.list_(pa.float64())}
    kinds, lines = lines_of(run)
    lines = list(lines)
    columns = {
        name: [plain(value) if isinstance(value := line[name], str) else value for line in lines] for name in kinds
    }
    table = pa.table(columns, schema=pa.schema([(name, types[kind]) for name, kind in kinds.items()]))
    file = pa.BufferOutputStream()
    parquet.write_table(table, file)
    return bytes(file.getvalue().to_pybytes())
