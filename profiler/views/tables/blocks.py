"""A model's blocks, for a screen or as JSON: knows nothing of how they are found."""

from __future__ import annotations

from rich.text import Text

from profiler.core.case import encode
from profiler.core.record import ModelSummary
from profiler.core.units import MISSING, count_text
from profiler.views.tables.columns import Column
from profiler.views.tables.terminal import fitted, paragraph

FEEDS = {True: "yes", False: "no", None: MISSING}


def blocks(outline: ModelSummary, *, width: int | None = None, encoding: str = "utf-8") -> Text:
    """A line for each block in order, below what they are blocks of."""
    found = outline.blocks
    head = [outline.model, count_text(outline.num_parameters, "parameter"), count_text(len(found), "block")]
    batch = [f"batch {outline.batch_size}"] if outline.batch_size else []
    columns = (
        _text("block", [one.name for one in found]),
        _text("class", [one.kind for one in found]),
        Column(head=("parameters", ""), cells=tuple(str(one.num_parameters) for one in found), is_number=True),
        _text("output", [one.output or "not run" for one in found]),
        _text("feeds the next alone", [FEEDS[one.feeds_next] for one in found]),
    )
    parts = [
        paragraph(", ".join([*head, *batch]), width=width, encoding=encoding, style="bold"),
        Text(),
        fitted(columns, width=width, encoding=encoding),
    ]
    if remark := _remark(outline):
        parts += [Text(), paragraph(f"note: {remark}", width=width, encoding=encoding)]
    return Text("\n").join(parts)


def document(outline: ModelSummary) -> bytes:
    """The outline as one JSON document."""
    return encode(outline) + b"\n"


def _remark(outline: ModelSummary) -> str | None:
    if outline.remark:
        return outline.remark
    apart = [one.name for one in outline.blocks if one.feeds_next is False]
    return f"segments cannot hold both a block with 'no' and the next ({', '.join(apart[:3])})" if apart else None


def _text(head: str, cells: list[str]) -> Column:
    return Column(head=(head, ""), cells=tuple(cells))
