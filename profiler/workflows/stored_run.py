"""Stored runs from Python and in notebooks, without torch."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import msgspec
import pandas as pd

from profiler.analysis.rows import COLUMNS, Row, flat_row
from profiler.analysis.rows import rows as read_rows
from profiler.core.units import count_text
from profiler.runs import run_folder, store
from profiler.views.export import run_html

KINDS = {str: "string", int: "Int64", float: "Float64", bool: "bool", tuple: "object"}  # integers stay so beside NA


class Run(store.Run, frozen=True, kw_only=True, dict=True):
    """A run folder as it was when it was loaded. A notebook shows it as a table."""

    @cached_property
    def _rows(self) -> tuple[Row, ...]:
        return read_rows(self.records)

    def rows(self) -> tuple[Row, ...]:
        """One row for each case, its rounds pooled, against the same case without checkpointing."""
        return self._rows

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a DataFrame with the columns of the CSV export: bytes and seconds, samples as tuples."""
        lines = [flat_row(row) for row in self.rows()]
        return pd.DataFrame(
            {name: pd.Series([line[name] for line in lines], dtype=KINDS[kind]) for name, kind in COLUMNS.items()}
        )

    def __repr__(self) -> str:
        return f"<gcprof run {self.folder.name}: {count_text(len(self.rows()), 'row')}, {self.status}>"

    def _repr_html_(self) -> str:
        return run_html(self.rows(), status=self.status)


def load(run: str | Path = "last") -> Run:
    """Returns the run that is called so: by its folder, its name below results/, or `last`. It needs no torch.

    `records` are as they were stored, `rows()` pools the rounds of each case and compares it with the case without
    checkpointing, and `to_pandas()` gives a frame of these rows: bytes and seconds, missing where it was not measured.
    Raises UserError where it is no run or is damaged.

    Example::

        run = gcprof.load("last")
        frame = run.to_pandas()
        frame[["strategy", "saved_bytes", "peak_bytes", "step_seconds"]]
    """
    return Run(**msgspec.structs.asdict(store.load(run_folder(str(run)))))
