"""The table of engines: where trials run. An engine only decides where; a trial stays one case in a fresh process.

An engine is a context manager with `survey()`, the devices there are, `ask(entry, text)`, what a function tells of a
text, and `run(plan, done)`, which yields one record for each trial that is owed, in any order, whatever becomes of it;
`order.in_waves` keeps to what must be known first. What it is connected with are options: `ray:address=auto`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from profiler import catalogue
from profiler.case import Choice, Trial
from profiler.record import Environment, Record

TABLE = {
    "local": "profiler.engines.local:connect",
    "slurm": "profiler.engines.slurm:connect",
    "trainer": "profiler.engines.trainer:connect",
}


def connect(text: str = "local", *, stage_seconds: float = 600.0, logs: Path | None = None) -> Engine:
    """The engine of that name, with its options; to be entered. Raises UserError where there is none."""
    make, options = catalogue.load(catalogue.resolve(Choice(text), TABLE, what="engine"), TABLE)
    engine: Engine = make(stage_seconds=stage_seconds, logs=logs, **options)
    return engine


class Engine(Protocol):
    logs: Path | None  # where the output of trials goes
    devices: tuple[str, ...]  # UUIDs of CUDA devices that the cases on "cuda" run on, all at once, one trial on each

    def __enter__(self) -> Engine: ...
    def __exit__(self, *error: object) -> None: ...
    def survey(self) -> dict[str, Environment]:
        """Every device that can be measured, by name; the CPU first."""

    def ask(self, entry: str, text: str, *, failing: str) -> dict[str, Any]:
        """What a function ("module:function") tells of a text, on a machine that has torch."""

    def run(self, plan: Iterable[Trial], done: Iterable[Record] = ()) -> Iterator[Record]:
        """One record for each trial that `done` does not settle. Closing the iterator ends what is at work."""
