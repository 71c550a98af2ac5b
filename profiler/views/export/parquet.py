"""Parquet export: the columns of the CSV, with typed numbers and samples as lists."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import parquet

from profiler.runs.store import Run
from profiler.views.export.data import lines_of
from profiler.views.sanitize import plain

KINDS = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), tuple: pa.list_(pa.float64())}


def render(run: Run) -> bytes:
    """Return a run as a Parquet file; null where nothing was measured. The types of the columns never change."""
    kinds, lines = lines_of(run)
    lines = list(lines)
    columns = {
        name: [plain(value) if isinstance(value := line[name], str) else value for line in lines] for name in kinds
    }
    table = pa.table(columns, schema=pa.schema([(name, KINDS[kind]) for name, kind in kinds.items()]))
    file = pa.BufferOutputStream()
    parquet.write_table(table, file)
    return bytes(file.getvalue().to_pybytes())
