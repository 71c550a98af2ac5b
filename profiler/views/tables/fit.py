"""The ways to make a step fit a memory: a row for each, with what it takes of the device and how much longer it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from profiler.analysis.rows import Row
from profiler.core.case import Case, encode_indented
from profiler.core.plan_file import strategy_labels
from profiler.core.units import MISSING, byte_unit, scaled
from profiler.views.tables import columns
from profiler.views.tables.grid import Table, numbers, telling, words

FITS = "<- fits"


def table(
    rows: Sequence[Row], needed: Sequence[int | None], fits: Sequence[bool], *, chosen: Row | None,
    places: Mapping[Case, str], below: Sequence[str],
) -> Table:  # fmt: skip
    """Return the table of the ways, with the bytes that each needs, where its peak is and whether it fits."""
    peaks = [row.readings.peak_bytes for row in rows]
    reserved = [row.readings.reserved_bytes for row in rows]
    size, unit = byte_unit([*peaks, *reserved, *needed])
    said = [FITS if row is chosen else "fits" if does else "" for row, does in zip(rows, fits, strict=True)]
    where = [places.get(row.case, row.readings.peak_phase or MISSING) for row in rows]
    known = "estimated" if rows[0].case.has_estimated_times else rows[0].evidence
    shown = (
        numbers("peak", unit, [scaled(nbytes, size) for nbytes in peaks]),
        *telling([numbers("reserved", unit, [scaled(nbytes, size) for nbytes in reserved])]),
        numbers("needed", unit, [scaled(nbytes, size) for nbytes in needed]),
        *telling(
            [numbers("time", known, ["baseline" if row is rows[0] else columns.time_change(row) for row in rows])]
        ),
        *telling([words("gradients", "", [row.gradients for row in rows])]),
        words("", "", said),
        words("peak in", "", where),
    )
    labels = words("strategy and levers", "", strategy_labels(row.case.label for row in rows))
    return Table(
        title=columns.heading(rows), columns=(labels, *shown), cuts=(1, len(shown)),
        below=(*columns.below(rows), *below),
    )  # fmt: skip


def document(
    rows: Sequence[Row], needed: Sequence[int | None], fits: Sequence[bool], *, chosen: Row | None, limit: int,
    context_bytes: int, left_out: dict[str, str], floors: dict[str, int],
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
        "ways": ways, "left_out": left_out, "floors": floors,
    }  # fmt: skip
    return encode_indented(fields)
