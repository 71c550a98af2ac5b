"""What one sees while a run goes on: a bar on a terminal, plain lines elsewhere. Knows nothing of measuring."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from profiler.record import Record
from profiler.units import bytes_text, seconds_text
from profiler.views.plain import plain


class Follow:
    """Enter it, and `show` every record that is safely stored."""

    def __init__(self, file: TextIO) -> None:
        self._console = Console(file=file, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._shown = 0
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
        line = plain(describe(record), encoding=self._console.encoding)
        self._bar.update(self._task, completed=self._shown, total=total, description=line)
        if not self._console.is_terminal:
            self._console.print(f"[{self._shown:>{len(str(total))}}/{total}] {line}")


def describe(record: Record) -> str:
    """One trial in one line: `mnist-cnn:channels=32 segments:k=4 round 1: ok, peak 44.4 MiB, step 241 ms`."""
    readings = record.readings
    seconds = sorted(readings.step_seconds or ())
    facts = [
        "predicted" if record.case.is_predicted and record.outcome == "ok" else record.outcome.replace("_", " "),
        f"peak {bytes_text(readings.peak_bytes)}" if readings.peak_bytes is not None else "",
        f"step {seconds_text(seconds[len(seconds) // 2])}" if seconds else "",
        (record.detail or "").splitlines()[0] if record.detail else "",
    ]
    where = f"{record.case.model} {record.case.strategy} round {record.round}"
    return f"{where}: {', '.join(fact for fact in facts if fact)}"
