"""LaTeX export: the table of a run, with booktabs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from profiler.analysis.rows import Row, rows
from profiler.runs.store import Run
from profiler.views.sanitize import plain
from profiler.views.tables.columns import columns, groups, heading, reasons, remarks
from profiler.views.tables.grid import Column

SPECIAL = str.maketrans(
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


def render(run: Run) -> bytes:
    """Return a run as a LaTeX file to be read by \\input."""
    return table(rows(run.records)).encode()


def table(rows: Iterable[Row]) -> str:
    """Return one table per group of rows, with the reasons and the notes in small type below it."""
    return "% needs \\usepackage{booktabs} and, for its width, \\usepackage{graphicx}\n" + "\n".join(
        _group(group) for group in groups(rows)
    )


def _group(rows: Sequence[Row]) -> str:
    below = [*reasons(rows), *(f"Note: {remark}" for remark in remarks(rows))]
    return table_of(columns(rows).all, caption=heading(rows), below=below)


def table_of(columns: Sequence[Column], *, caption: str, below: Sequence[str] = ()) -> str:
    """Return one table, with texts in small type below it."""
    heads = [line for line in zip(*(column.head for column in columns), strict=True) if any(line)]
    lines = zip(*(column.cells for column in columns), strict=True)
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escaped(caption)}}}",
            r"\resizebox{\textwidth}{!}{%",
            rf"\begin{{tabular}}{{{''.join('r' if column.is_number else 'l' for column in columns)}}}",
            r"\toprule",
            *(rf"{' & '.join(map(_escaped, head))} \\" for head in heads),
            r"\midrule",
            *(rf"{' & '.join(map(_escaped, line))} \\" for line in lines),
            r"\bottomrule",
            r"\end{tabular}}",
            *(rf"\par{{\footnotesize {_escaped(line)}}}" for line in below),
            r"\end{table}",
            "",
        ]
    )


def _escaped(text: str) -> str:
    return plain(text).translate(SPECIAL)
