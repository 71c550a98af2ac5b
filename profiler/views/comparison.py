"""Several runs side by side, for a screen or as Markdown: knows nothing of how they are compared."""

from __future__ import annotations

from rich.text import Text

from profiler.analysis.comparison import Comparison
from profiler.views.cells import Column
from profiler.views.comparison_parts import Part, parts
from profiler.views.markdown import SPECIAL
from profiler.views.plain import plain
from profiler.views.terminal import fitted, paragraph


def table(found: Comparison, *, width: int | None = None, encoding: str = "utf-8") -> Text:
    """What differs, then every row's peak and time, then orders, advice and remarks."""
    return Text("\n\n").join([_drawn(part, width=width, encoding=encoding) for part in parts(found)])


def markdown(found: Comparison) -> str:
    """The same as Markdown."""
    return "\n\n".join(_written(part) for part in parts(found)) + "\n"


def _drawn(part: Part, *, width: int | None, encoding: str) -> Text:
    lines = [paragraph(part.heading, width=width, encoding=encoding, style="bold")] if part.heading else []
    if part.columns:
        lines += [Text()] if part.heading else []
        lines.append(fitted(part.columns, width=width, encoding=encoding, cut=part.cut))
    lines += [paragraph(line, width=width, encoding=encoding) for line in part.lines]
    return Text("\n").join(lines)


def _written(part: Part) -> str:
    heading = [f"### {_escaped(part.heading)}"] if part.heading else []
    listed = ["\n".join(f"- {_escaped(line)}" for line in part.lines)] if part.lines else []
    return "\n\n".join([*heading, *([_grid(part.columns)] if part.columns else []), *listed])


def _grid(columns: tuple[Column, ...]) -> str:
    rule = "|" + "|".join(" ---: " if column.is_number else " --- " for column in columns) + "|"
    rows = [_line([column.cells[row] for column in columns]) for row in range(len(columns[0].cells))]
    return "\n".join([_line([column.label for column in columns]), rule, *rows])


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(_escaped(cell) for cell in cells) + " |"


def _escaped(text: str) -> str:
    return plain(text).translate(SPECIAL)
