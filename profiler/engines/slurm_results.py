"""Reads the records that jobs write, each into its own folder, as they appear."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from profiler.analysis import progress
from profiler.analysis.rows import latest
from profiler.core import safe_files
from profiler.core.case import Case, Trial
from profiler.core.record import Record
from profiler.engines.child_outcome import lost
from profiler.runs import store


class ShardFolder:
    """The folder that one job writes, read as it grows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan = store.read_manifest(folder).plan
        self._records: list[Record] = []
        self._num_read = 0  # bytes

    def look(self) -> None:
        """Read the lines that are complete by now. Raises UserError (exit code 4) for one that cannot be read."""
        with safe_files.opened(self.folder / "trials.jsonl") as file:
            file.seek(self._num_read)
            whole, newline, _ = file.read(safe_files.MOST_BYTES).rpartition(b"\n")
        self._num_read += len(whole) + len(newline)
        where = str(self.folder / "trials.jsonl")
        self._records += [store.read_record(line, where) for line in whole.split(b"\n") if line]

    def standing(self) -> list[Record]:
        """Return the records of trials that a continued job does not run again."""
        return progress.settled(self._records)

    def final(self) -> list[Record]:
        """Return the last record of each trial, once no job writes any more."""
        return latest(self._records)

    def owed(self) -> tuple[Trial, ...]:
        return progress.owed(self.plan, self.final())

    def lose(self, why: str) -> None:
        """Record what its job left undone as crashed, for this reason."""
        self._records += [lost(trial, "crashed", why) for trial in self.owed()]


class Gathered:
    """The records that a run has received: each trial once, a later round only after a first round that is ok.

    A job that has a later round cannot know the outcome of the first round, which may be in another job.
    """

    def __init__(self, plan: Iterable[Trial], done: Iterable[Record]) -> None:
        self.records: dict[tuple[Case, int], Record] = {(record.case, record.round): record for record in done}
        self._have_first = {trial.case for trial in plan if trial.round == 1}
        self._waiting: dict[tuple[Case, int], Record] = {}  # later rounds whose first round is not known yet

    def news(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yield new records that may be received; first rounds come first, since later rounds wait for them."""
        offered = {**self._waiting, **{(record.case, record.round): record for record in records}}
        for key, record in sorted(offered.items(), key=lambda offer: offer[0][1]):
            if key in self.records:
                continue
            self._waiting[key] = record
            if self._may_come(record):
                self.records[key] = self._waiting.pop(key)
                yield record

    def _may_come(self, record: Record) -> bool:
        if record.round == 1 or record.case not in self._have_first:
            return True
        first = self.records.get((record.case, 1))
        return first is not None and first.outcome == "ok"
