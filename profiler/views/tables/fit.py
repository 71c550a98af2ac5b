"""The ways to make a step fit a memory: the table of a run, with what each row takes of the device."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from profiler.analysis.rows import Row
from profiler.core.case import encode_indented
from profiler.core.units import bytes_text
from profiler.views.tables.columns import group_table
from profiler.views.tables.grid import Table, numbers, words

FITS = "<- fits"
LEFT_OUT = ("split", "saved", "static", "step", "spread")  # columns of a run's table, which `gcprof show` has


def table(
    rows: Sequence[Row], needed: Sequence[int | None], fits: Sequence[bool], *, chosen: Row | None, below: Sequence[str]
) -> Table:
    """Return the table of the ways, with the bytes that each needs and whether it fits."""
    plain = group_table(rows)
    said = [FITS if row is chosen else "fits" if does else "" for row, does in zip(rows, fits, strict=True)]
    alike = {("peak", "phase"), *([("outcome", "")] if len({row.outcome for row in rows}) == 1 else [])}
    kept = (column for column in plain.columns if column.head[0] not in LEFT_OUT and column.head not in alike)
    columns = (*kept, numbers("needed", "", map(bytes_text, needed)), words("", "", said))
    return msgspec.structs.replace(plain, columns=columns, cuts=(1,), below=(*plain.below, *below))


def document(
    rows: Sequence[Row], needed: Sequence[int | None], fits: Sequence[bool], *, chosen: Row | None, limit: int,
    context_bytes: int, left_out: dict[str, str],
) -> bytes:  # fmt: skip
    """Return one JSON document, one field per line."""
    ways = [
        {
            "way": row.case.label, "outcome": row.outcome, "peak_bytes": row.readings.peak_bytes,
            "reserved_bytes": row.readings.reserved_bytes, "needed_bytes": nbytes, "time_ratio": row.time_ratio,
            "time_ratio_range": row.time_ratio_range, "gradients": row.gradients, "evidence": row.evidence,
            "fits": does, "is_chosen": row is chosen,
        }
        for row, nbytes, does in zip(rows, needed, fits, strict=True)
    ]  # fmt: skip
    fields = {
        "schema": 1, "model": rows[0].case.model, "memory_bytes": limit, "context_bytes": context_bytes,
        "ways": ways, "left_out": left_out,
    }  # fmt: skip
    return encode_indented(fields)
