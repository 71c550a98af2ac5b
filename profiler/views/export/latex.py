"""LaTeX export: the table of a run, with booktabs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from profiler.analysis.rows import Row, rows
from profiler.runs.store import Run
from profiler.views.sanitize import plain
from profiler.views.tables.columns import columns, groups, heading, reasons, remarks

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
    shown = columns(rows).all
    heads = [" & ".join(_escaped(column.head[line]) for column in shown) for line in (0, 1)]
    cells = [" & ".join(_escaped(column.cells[row]) for column in shown) for row in range(len(rows))]
    below = [*reasons(rows), *(f"Note: {remark}" for remark in remarks(rows))]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escaped(heading(rows))}}}",
            r"\resizebox{\textwidth}{!}{%",
            rf"\begin{{tabular}}{{{''.join('r' if column.is_number else 'l' for column in shown)}}}",
            r"\toprule",
            *(rf"{head} \\" for head in heads),
            r"\midrule",
            *(rf"{line} \\" for line in cells),
            r"\bottomrule",
            r"\end{tabular}}",
            *(rf"\par{{\footnotesize {_escaped(line)}}}" for line in below),
            r"\end{table}",
            "",
        ]
    )


def _escaped(text: str) -> str:
    return plain(text).translate(SPECIAL)
