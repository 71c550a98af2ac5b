"""The explanation of the peak of a CUDA memory snapshot as text for a terminal or as JSON."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.text import Text

from profiler.analysis.live_bytes import Holder
from profiler.analysis.snapshot import SnapshotExplanation
from profiler.core.case import encode
from profiler.core.units import byte_unit, bytes_text, count_text, scaled
from profiler.views.sanitize import shortened
from profiler.views.tables.grid import numbers, words
from profiler.views.tables.terminal import WIDE, Paper, fitted, paragraph

LONGEST = 40  # characters of a line of code
NOWHERE = "(no line of yours)"


def snapshot(explained: SnapshotExplanation, *, title: str, paper: Paper = WIDE) -> Text:
    """Return the peak, what held it, what stayed, and what was reserved."""
    lines = [_peak(explained), _end(explained)]
    if explained.failed_bytes is not None:
        lines.append(f"a request of {bytes_text(explained.failed_bytes)} failed: out of memory")
    parts = [paragraph(title, paper, style="bold")]
    parts += [paragraph(line, paper) for line in lines]
    for head, holders in (("live at the peak", explained.holders), ("stayed, from time to time", explained.grown)):
        if holders:
            parts += [Text(), _table(head, holders, paper)]
    return Text("\n").join(parts)


def document(explained: SnapshotExplanation) -> bytes:
    """Return the explanation as one JSON document."""
    fields = {"evidence": "recorded", **msgspec.to_builtins(explained), "free_bytes": explained.free_bytes}
    return encode(fields) + b"\n"


def _peak(explained: SnapshotExplanation) -> str:
    peak, number = bytes_text(explained.peak_bytes), explained.peak_event
    shares = ", ".join(f"{share.name} {bytes_text(share.nbytes)}" for share in explained.categories)
    if number is None:
        return f"peak {peak}: when the recording began; {shares}"
    at = f", {shortened(explained.peak_line, LONGEST)}" if explained.peak_line else ""
    return f"peak {peak}: event {number + 1} of {explained.num_events}{at}; {shares}"


def _end(explained: SnapshotExplanation) -> str:
    held = f"at the end {bytes_text(explained.end_bytes)} live of {bytes_text(explained.reserved_bytes)} reserved"
    free = f"{bytes_text(explained.free_bytes)} free, at most {bytes_text(explained.largest_free_bytes)} in one piece"
    return f"{held} in {count_text(explained.num_segments, 'segment')}: {free}"


def _table(head: str, holders: Sequence[Holder], paper: Paper) -> Text:
    size, unit = byte_unit(holder.nbytes for holder in holders)
    columns = [
        words(head, "", [shortened(holder.line, LONGEST) or NOWHERE for holder in holders]),
        words("category", "", [holder.category for holder in holders]),
        numbers("number", "", [str(holder.count) for holder in holders]),
        numbers(unit, "", [scaled(holder.nbytes, size) for holder in holders]),
    ]
    return fitted(columns, paper)
