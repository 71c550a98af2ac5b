"""Parquet export: the columns of the CSV, with typed numbers and samples as lists."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import parquet

from profiler.analysis.flat_row import COLUMNS, flat_row
from profiler.analysis.rows import rows
from profiler.runs.store import Run
from profiler.views.export.csv import SCRIPT_COLUMNS, phases
from profiler.views.sanitize import plain

KINDS = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), tuple: pa.list_(pa.float64())}


def render(run: Run) -> bytes:
    """Return a run as a Parquet file; null where nothing was measured. The types of the columns never change."""
    kinds = SCRIPT_COLUMNS if run.is_script else COLUMNS
    lines = list(phases(run)) if run.is_script else [flat_row(row) for row in rows(run.records)]
    columns = {
        name: [plain(value) if isinstance(value := line[name], str) else value for line in lines] for name in kinds
    }
    table = pa.table(columns, schema=pa.schema([(name, KINDS[kind]) for name, kind in kinds.items()]))
    file = pa.BufferOutputStream()
    parquet.write_table(table, file)
    text: bytes = file.getvalue().to_pybytes()
    return text
