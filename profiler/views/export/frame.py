"""The rows of a run as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from profiler.analysis.flat_row import COLUMNS, flat_row
from profiler.analysis.rows import Row

KINDS = {str: "string", int: "Int64", float: "Float64", bool: "bool", tuple: "object"}  # integers stay so beside NA


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Return one row per case: bytes and seconds, samples as tuples, NA where nothing was measured."""
    lines = [flat_row(row) for row in rows]
    return pd.DataFrame(
        {name: pd.Series([line[name] for line in lines], dtype=KINDS[kind]) for name, kind in COLUMNS.items()}
    )
