"""What one sees while a run goes on: a bar on a terminal, plain lines elsewhere. Knows nothing of measuring."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TextIO

from msgspec import UNSET
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from profiler.analysis.progress import FAILURES
from profiler.core.case import Case, Choice
from profiler.core.record import Record, evidence
from profiler.core.units import bytes_text, seconds_text
from profiler.views.sanitize import plain
from profiler.views.tables.logs import last_lines


class Follow:
    """Enter it, and `show` every record that is safely stored; each is told by what is not the same in all `cases`."""

    def __init__(self, file: TextIO, cases: Sequence[Case] = ()) -> None:
        self._varying = varying(cases)
        self._console = Console(file=file, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._shown = 0
        self._said: set[tuple[str, ...]] = set()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=self._console, disable=not self._console.is_terminal, transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> Follow:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def show(self, record: Record, *, left: int) -> None:
        """`left` trials are still to come: fewer than planned where a case cannot run at all."""
        self._shown += 1
        total = self._shown + left
        line = plain(describe(record, varying=self._varying), encoding=self._console.encoding)
        self._bar.update(self._task, completed=self._shown, total=total, description=line)
        if not self._console.is_terminal:
            # not by rich, which ends the process where nobody reads; at once, or Ctrl-C would tear it from its end
            self._console.file.write(f"[{self._shown:>{len(str(total))}}/{total}] {line}\n")
            self._console.file.flush()

    def tell_log(self, record: Record, log: Path) -> None:
        """The last lines of a trial that went wrong; the same ones are told once."""
        encoding = self._console.encoding
        lines = tuple(last_lines(log, encoding=encoding)) if record.outcome in FAILURES else ()
        if lines and lines not in self._said:
            self._said.add(lines)
            what = f"{record.case.model} {record.case.strategy}: {record.outcome.replace('_', ' ')}"
            self._console.print(plain(f"the last it printed ({what}; {log}):", encoding=encoding))
            self._console.print("\n".join(f"    {line}" for line in lines))


def varying(cases: Sequence[Case]) -> tuple[str, ...]:
    """The fields, besides model and strategy, that are not the same in all cases; `predicted` tells twins apart."""
    several = len({case.device for case in cases if case.is_predicted}) > 1
    of_model: dict[Choice, list[Case]] = {}  # models have batches of their own, which tell nothing besides
    for case in cases:
        of_model.setdefault(case.model, []).append(case if several else case.twin)
    fields = [field for field in Case.__struct_fields__ if field not in ("model", "strategy")]
    return tuple(
        field for field in fields if any(len({getattr(case, field) for case in some}) > 1 for some in of_model.values())
    )


def describe(record: Record, *, varying: Sequence[str] = ()) -> str:
    """One trial in one line: `mnist-cnn:channels=32 segments:k=4 round 1: ok, peak 44.4 MiB, step 241 ms`."""
    readings = record.readings
    seconds = readings.step_seconds
    kind = evidence(record.case, record.environment)
    facts = [
        kind if kind != "measured" and record.outcome == "ok" else record.outcome.replace("_", " "),
        f"peak {bytes_text(readings.peak_bytes)}" if readings.peak_bytes is not None else "",
        f"step {seconds_text(median(seconds))}" if seconds else "",
        (record.detail or "").splitlines()[0] if record.detail else "",
    ]
    where = [str(record.case.model), str(record.case.strategy), *settings(record.case, varying)]
    return f"{' '.join(where)} round {record.round}: {', '.join(fact for fact in facts if fact)}"


def settings(case: Case, fields: Sequence[str]) -> list[str]:
    """What a case has of these fields, where it has them: `batch size 8`."""
    values = {field.replace("_", " "): getattr(case, field) for field in fields}
    return [f"{name} {value}" for name, value in values.items() if value is not UNSET]
