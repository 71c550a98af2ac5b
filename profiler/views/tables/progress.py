"""A run as lines of text: what it will cost, each trial as it ends, and the log of one that failed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TextIO

import msgspec
from msgspec import UNSET
from rich.console import Console

from profiler.analysis.cost import Bounds, SweepCost
from profiler.analysis.progress import FAILURES
from profiler.core import safe_files
from profiler.core.case import Case, Choice
from profiler.core.record import Record, evidence
from profiler.core.units import bytes_text, count_text, seconds_text
from profiler.views.sanitize import plain
from profiler.views.strategy_label import strategy_label
from profiler.views.tables.evidence import device_word
from profiler.views.tables.live import LiveScreen

NUM_LINES = 20
NUM_BYTES = 64 << 10  # of a log's end; a longer line has no beginning here
WIDEST = 500  # characters of a line
TRACED_SECONDS, MEASURED_SECONDS = 0.5, 2.5  # of a trial, as long as none has ended: its start, and 2 s of samples


class Follow:
    """Shows every stored record in a live table on a terminal, elsewhere as plain lines.

    Lines name what differs between `cases`, which are those of all trials. `is_quiet` leaves out all but what failed.
    """

    def __init__(
        self,
        file: TextIO,
        cases: Sequence[Case] = (),
        *,
        is_quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._varying = varying(cases)
        self._console = Console(file=file, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._is_quiet = is_quiet
        self._shown = 0
        self._said: set[tuple[str, ...]] = set()
        self._screen = LiveScreen(self._console, clock=clock, first_guess=_guess(cases), num_trials=len(cases))

    def __enter__(self) -> Follow:
        if self._console.is_terminal and not self._is_quiet:
            self._screen.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._screen.stop()

    def at_work(self, text: str) -> None:
        """Shows what runs now, on a terminal."""
        self._screen.now = plain(text, encoding=self._console.encoding)

    def show(self, record: Record, *, left: int) -> None:
        """Shows a record; `left` trials are still to come, fewer than planned if a case cannot run at all."""
        self._shown += 1
        total = self._shown + left
        self._screen.add(record, total=total)
        if not self._console.is_terminal and not self._is_quiet:
            line = plain(trial_line(record, varying=self._varying), encoding=self._console.encoding)
            # not by rich, which ends the process where nobody reads; at once, or Ctrl-C would tear it from its end
            self._console.file.write(f"[{self._shown:>{len(str(total))}}/{total}] {line}\n")
            self._console.file.flush()

    def tell_log(self, record: Record, log: Path) -> None:
        """Prints the last lines of a failed trial; the same lines only once."""
        encoding = self._console.encoding
        lines = tuple(last_lines(log, encoding=encoding)) if record.outcome in FAILURES else ()
        if lines and lines not in self._said:
            self._said.add(lines)
            trial = f"{record.case.model} {strategy_label(record.case.strategy)}: {record.outcome.replace('_', ' ')}"
            self._console.print(plain(f"the last it printed ({trial}; {log}):", encoding=encoding))
            self._console.print("\n".join(f"    {line}" for line in lines))


def _guess(cases: Sequence[Case]) -> float:
    """Seconds that trials of these cases may take, before one has ended."""
    return sum(TRACED_SECONDS if case.is_predicted or case.is_rehearsed else MEASURED_SECONDS for case in cases)


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


def trial_line(record: Record, *, varying: Sequence[str] = ()) -> str:
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
    where = [str(record.case.model), strategy_label(record.case.strategy), *settings(record.case, varying)]
    return f"{' '.join(where)} round {record.round}: {', '.join(fact for fact in facts if fact)}"


def settings(case: Case, fields: Sequence[str]) -> list[str]:
    """Returns the values of these fields that a case has, like `batch size 8`."""
    shown = msgspec.structs.replace(case, device=device_word(case.device))
    values = {field.replace("_", " "): getattr(shown, field) for field in fields}
    return [f"{name} {value}" for name, value in values.items() if value is not UNSET]


def last_lines(log: Path, *, encoding: str = "utf-8") -> list[str]:
    """Returns at most NUM_LINES lines of a log, harmless on any screen, with their indents; none without a log."""
    try:
        with safe_files.opened(log) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - NUM_BYTES))
            lines = file.read(NUM_BYTES).decode(errors="replace").rstrip().splitlines()
    except OSError:
        return []
    return [_harmless(line[:WIDEST], encoding) for line in lines[-NUM_LINES:]]


def _harmless(line: str, encoding: str) -> str:
    indent = len(line) - len(line.lstrip(" "))
    return " " * indent + plain(line, encoding=encoding)


def cost_lines(cost: SweepCost, *, basis: str | None = None, start: str = "", unknown: str = "") -> list[str]:
    """Returns what a sweep costs, in lines.

    `basis` says where the seconds come from, `start` how long a trial takes to start, `unknown` why some have none.
    """
    num_measured = cost.num_trials - cost.num_predicted - cost.num_rehearsed
    others = {"predictions": cost.num_predicted, "rehearsals": cost.num_rehearsed}
    named = " and ".join(f"{number:,} of them {name}" for name, number in others.items() if number)
    lines = [f"{count_text(cost.num_trials, 'trial')}{f', {named}, which need no device' if named else ''}"]
    if not num_measured:
        return lines
    until = f"; a round is timed for up to {cost.sampling_seconds:g} s, or 8 steps" if cost.sampling_seconds else ""
    lines.append(f"steps: {_range_text(cost.steps)}{until}; of steps of less than 1 ms several make a sample")
    if cost.gpu_seconds is not None:
        lines.append(f"GPU seconds: {_range_text(cost.gpu_seconds)}, predicted, not measured")
        lines.append(f"  {start} a trial; {basis}")
    if unknown:
        lines.append(f"GPU seconds of {count_text(cost.num_unknown, 'trial')}: not known: {unknown}")
    return lines


def _range_text(span: Bounds) -> str:
    least, most = _number(span.least), _number(span.most)
    return least if least == most else f"{least} to {most}"


def _number(value: float) -> str:
    """Returns a whole number, or two digits of a small one."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"
