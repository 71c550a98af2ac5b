"""Stored runs from Python and in notebooks: knows nothing of torch, of measuring or of terminals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from profiler.analysis import progress
from profiler.analysis.rows import Row
from profiler.analysis.rows import rows as read_rows
from profiler.core.units import count_text
from profiler.runs import store
from profiler.runs.find import run_folder
from profiler.views.tables.notebook import frame, page

if TYPE_CHECKING:
    import pandas as pd

    from profiler.core.record import Record


class Run:
    """A run folder as it was when it was loaded. A notebook shows it as a table."""

    def __init__(self, stored: store.Run) -> None:
        self.folder = stored.folder
        self.manifest = stored.manifest
        self.records: tuple[Record, ...] = stored.records
        self.warnings = stored.warnings
        self._rows: tuple[Row, ...] | None = None

    @property
    def status(self) -> str:
        """`complete`, or `partial` where trials are owed."""
        return progress.status(self.manifest.plan, self.records)

    def rows(self) -> tuple[Row, ...]:
        """One row for each case, its rounds pooled, against the same case without checkpointing."""
        if self._rows is None:
            self._rows = read_rows(self.records)
        return self._rows

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a DataFrame with the columns of the CSV export: bytes and seconds, samples as tuples."""
        return frame(self.rows())

    def __repr__(self) -> str:
        return f"<gcprof run {self.folder.name}: {count_text(len(self.rows()), 'row')}, {self.status}>"

    def _repr_html_(self) -> str:
        return page(self.rows(), status=self.status)


def load(run: str | Path = "last") -> Run:
    """A run by its folder, its name below results/, or `last`. Raises UserError where it is none or is damaged."""
    return Run(store.load(run_folder(str(run))))
