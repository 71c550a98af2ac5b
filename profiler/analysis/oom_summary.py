"""What rows that ran out of memory say together. Pure: knows nothing of words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from profiler.analysis.rows import Row
from profiler.core.record import Shortage


def is_all_out_of_memory(rows: Iterable[Row]) -> bool:
    """Whether nothing that could be tried at all fits; what was skipped was not tried."""
    tried = {row.outcome for row in rows} - {"skipped"}
    return tried == {"out_of_memory"}


def smallest_request(rows: Sequence[Row]) -> Shortage | None:
    """The failed request for the fewest bytes; None where no error told its size."""
    found = [record.shortage for row in rows for record in row.rounds if record.shortage]
    known = [one for one in found if one.asked_bytes is not None]
    return min(known, key=lambda one: one.asked_bytes or 0, default=None)
