"""Parquet export: the columns of the CSV, with typed numbers and samples as lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from profiler.analysis.flat_row import COLUMNS, flat_row
from profiler.analysis.rows import Row, rows
from profiler.runs.store import Run
from profiler.views.export import script
from profiler.views.sanitize import plain

KINDS = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), tuple: pa.list_(pa.float64())}


def render(run: Run) -> bytes:
    """Return a run as a Parquet file."""
    return _file(table(rows(run.records)))


def render_script(run: Run) -> bytes:
    """Return the run of a script as a Parquet file, one row a phase."""
    return _file(_typed(list(script.rows(run)), script.COLUMNS))


def table(rows: Iterable[Row]) -> pa.Table:
    """Return one row per case; null where nothing was measured. The types of the columns never change."""
    return _typed([flat_row(row) for row in rows], COLUMNS)


def _typed(lines: Sequence[Mapping[str, Any]], kinds: Mapping[str, type]) -> pa.Table:
    columns = {
        name: [plain(value) if isinstance(value := line[name], str) else value for line in lines] for name in kinds
    }
    return pa.table(columns, schema=pa.schema([(name, KINDS[kind]) for name, kind in kinds.items()]))


def _file(columns: pa.Table) -> bytes:
    file = pa.BufferOutputStream()
    parquet.write_table(columns, file)
    text: bytes = file.getvalue().to_pybytes()
    return text
