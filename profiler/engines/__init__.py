"""The table of engines: where trials run. An engine only decides where; a trial stays one case in a fresh process.

An engine is a context manager with `survey()`, the devices there are, `ask(entry, text)`, what a function tells of a
text, and `run(trials)`, which yields one record for each trial in any order, whatever becomes of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from profiler.case import Trial
from profiler.record import Environment, Record

TABLE = {"local": "profiler.engines.local:connect", "trainer": "profiler.engines.trainer:connect"}


class Engine(Protocol):
    logs: Path | None  # where the output of trials goes

    def __enter__(self) -> Engine: ...
    def __exit__(self, *error: object) -> None: ...
    def survey(self) -> dict[str, Environment]:
        """Every device that can be measured, by name; the CPU first."""

    def ask(self, entry: str, text: str, *, failing: str) -> dict[str, Any]:
        """What a function ("module:function") tells of a text, on a machine that has torch."""

    def run(self, trials: Iterable[Trial]) -> Iterator[Record]: ...
