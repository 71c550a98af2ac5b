"""LaTeX export: the table of a run, with booktabs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

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
    heads = [[column.head[line] for column in shown] for line in (0, 1)]
    cells = [[column.cells[row] for column in shown] for row in range(len(rows))]
    below = [*reasons(rows), *(f"Note: {remark}" for remark in remarks(rows))]
    numbers = [at for at, column in enumerate(shown) if column.is_number]
    return _lines(heads, cells, caption=heading(rows), numbers=numbers, below=below)


def table_of(head: Sequence[str], lines: Sequence[Sequence[str]], *, caption: str, numbers: Collection[int]) -> str:
    """Return one table; `numbers` are the places of its columns of numbers."""
    return _lines([head], lines, caption=caption, numbers=numbers, below=())


def _lines(
    heads: Sequence[Sequence[str]],
    lines: Sequence[Sequence[str]],
    *,
    caption: str,
    numbers: Collection[int],
    below: Sequence[str],
) -> str:
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escaped(caption)}}}",
            r"\resizebox{\textwidth}{!}{%",
            rf"\begin{{tabular}}{{{''.join('r' if at in numbers else 'l' for at in range(len(heads[0])))}}}",
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
