"""Rows as a pandas DataFrame: the columns of the CSV, numbers as numbers. Knows nothing of files."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pandas as pd

from profiler.analysis.flat_row import COLUMNS, flat_row
from profiler.analysis.rows import Row

KINDS = {str: "string", int: "Int64", float: "Float64", bool: "bool", tuple: "object"}  # whole numbers stay so


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    """One line a case; bytes and seconds, samples as tuples, NA where it was not measured."""
    lines = [msgspec.structs.asdict(flat_row(row)) for row in rows]
    return pd.DataFrame(
        {name: pd.Series([one[name] for one in lines], dtype=KINDS[kind]) for name, kind in COLUMNS.items()}
    )
