"""Parquet export: the columns of the CSV, with typed numbers and samples as lists."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyarrow import parquet

from profiler.analysis.flat_row import COLUMNS, flat_row
from profiler.analysis.rows import Row, rows
from profiler.runs.store import Run
from profiler.views.sanitize import plain

KINDS = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), tuple: pa.list_(pa.float64())}


def render(run: Run) -> bytes:
    """Return a run as a Parquet file."""
    file = pa.BufferOutputStream()
    parquet.write_table(table(rows(run.records)), file)
    text: bytes = file.getvalue().to_pybytes()
    return text


def table(rows: Iterable[Row]) -> pa.Table:
    """Return one row per case; null where nothing was measured. The types of the columns never change."""
    lines = [flat_row(row) for row in rows]
    columns = {
        name: [plain(value) if isinstance(value := line[name], str) else value for line in lines] for name in COLUMNS
    }
    return pa.table(columns, schema=pa.schema([(name, KINDS[kind]) for name, kind in COLUMNS.items()]))
