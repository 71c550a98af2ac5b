"""The progress of a run as text: its estimated cost, each trial as it ends, and the log of a failed one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TextIO

import msgspec
from msgspec import UNSET
from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from profiler.analysis.progress import FAILURES, Bounds, SweepCost
from profiler.analysis.rows import rows
from profiler.core import safe_files
from profiler.core.case import Case
from profiler.core.plan_file import strategy_label
from profiler.core.record import Record, evidence
from profiler.core.units import bytes_text, count_text, left_text, seconds_text
from profiler.views.sanitize import plain
from profiler.views.tables import Paper, text
from profiler.views.tables.columns import device_word, group_table, groups

NUM_LINES = 20
NUM_BYTES = 64 << 10  # read from the end of a log; a longer line loses its beginning
WIDEST = 500  # characters of a line
TRACED_SECONDS, MEASURED_SECONDS = 0.5, 2.5  # assumed for a trial until one has ended: its start, and 2 s of samples
MOST_ROWS = 200  # records in the live table; of more only the count is shown
LATER_SHARE = 0.4  # duration of a trial of a later round, which only times steps, over that of one in the first round
PER_SECOND = 4  # how often the screen is drawn


class Follow:
    """Shows every stored record in a live table on a terminal, which is erased afterwards; elsewhere as plain lines.

    `cases` are those of all trials: lines name the settings in which they differ. `is_quiet` shows failures only.
    """

    def __init__(
        self,
        file: TextIO,
        cases: Sequence[Case] = (),
        *,
        is_quiet: bool = False,
        names_logs: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._varying, self._is_quiet, self._names_logs = varying(cases), is_quiet, names_logs
        self._console = Console(file=file, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._said: set[tuple[str, ...]] = set()
        self._now = ""  # what runs now
        self._clock, self._since = clock, clock()
        later = len(cases) - len(set(cases))
        self._guesses = [*map(_guess, dict.fromkeys(cases)), *([MEASURED_SECONDS * LATER_SHARE] * later)]  # in order
        self._records: list[Record] = []
        self._total, self._num_ended, self._ended_guess = len(cases), 0, 0.0
        self._drawn: tuple[int, int, Text] | None = None  # number of records, width of the terminal, and their table
        self._spinner = Spinner("line")
        self._live = Live(
            console=self._console, get_renderable=self.screen, transient=True, refresh_per_second=PER_SECOND
        )

    def __enter__(self) -> Follow:
        if self._console.is_terminal and not self._is_quiet:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def at_work(self, text: str) -> None:
        """Shows what runs now, on a terminal."""
        self._now = plain(text, encoding=self._console.encoding)

    def show(self, record: Record, left: int, log: Path | None = None) -> None:
        """Shows a record, and the last lines of its log if it failed; the same lines only once.

        `left` trials are still to come, fewer than planned if a case cannot run at all.
        """
        self._num_ended += 1
        self._total, self._now = self._num_ended + left, ""
        self._ended_guess += _guess(record.case) * (LATER_SHARE if record.round > 1 else 1)
        if len(self._records) < MOST_ROWS:
            self._records.append(record)
        if record.outcome != "ok" if self._is_quiet else not self._console.is_terminal:
            line = plain(trial_line(record, varying=self._varying), encoding=self._console.encoding)
            seconds = self.left_seconds() if left else None
            remaining = f"; {left_text(seconds)}" if seconds is not None else ""
            # not by rich, which ends the process on a broken pipe; in one write, so that Ctrl-C cannot split the line
            number = f"{self._num_ended:>{len(str(self._total))}}"
            self._console.file.write(f"[{number}/{self._total}] {line}{remaining}\n")
            self._console.file.flush()
        encoding = self._console.encoding
        lines = tuple(last_lines(log, encoding=encoding)) if log and record.outcome in FAILURES else ()
        if lines and lines not in self._said:
            self._said.add(lines)
            trial = f"{record.case.model} {strategy_label(record.case.label)}: {record.outcome.replace('_', ' ')}"
            named = f"; {log}" if self._names_logs else ""
            self._console.print(plain(f"the last it printed ({trial}{named}):", encoding=encoding))
            self._console.print("\n".join(f"    {line}" for line in lines))

    def screen(self) -> Group:
        """Return what is shown now: the table, if it is not too high, and below it the status line."""
        self._spinner.update(text=Text(self.line(), overflow="ellipsis", no_wrap=True))
        width, table = self._console.width, Text()
        if self._records and self._num_ended <= MOST_ROWS:
            if self._drawn is None or self._drawn[:2] != (len(self._records), width):
                bare = [group_table(group, is_bare=True) for group in groups(rows(tuple(self._records)))]
                self._drawn = len(self._records), width, text(bare, Paper(width, self._console.encoding))
            table = self._drawn[2]
        is_whole = len(table.plain.splitlines()) < self._console.height - 2
        return Group(table, Text(), self._spinner) if table and is_whole else Group(self._spinner)

    def line(self) -> str:
        """Return the status line: `3/21  0:00:07, about 0:00:40 left  segments:k=4 round 1: time`."""
        count = f"{self._num_ended}/{self._total}" if self._total else ""
        seconds, left = self._clock() - self._since, self.left_seconds()
        times, *about = [timedelta(seconds=round(one)) for one in (seconds, left) if one is not None]
        return "  ".join(filter(None, (count, f"{times}{''.join(f', about {one} left' for one in about)}", self._now)))

    def left_seconds(self) -> float | None:
        """Return the estimated seconds left: the guess for what is left, scaled by how long that for the rest took.

        None without a total, or if the guess was too short and no trial has ended.
        """
        seconds, left = self._clock() - self._since, self._total - self._num_ended
        guess = sum(self._guesses[-left:]) if left else 0.0
        if self._num_ended:
            return seconds * guess / self._ended_guess
        return guess - seconds if seconds < guess else None


def _guess(case: Case) -> float:
    """Return the seconds that a trial of the first round is assumed to take."""
    return TRACED_SECONDS if case.is_predicted or case.is_rehearsed else MEASURED_SECONDS


def varying(cases: Sequence[Case]) -> tuple[str, ...]:
    """Return the fields, besides model and strategy, that differ between the cases of a model.

    The devices of a prediction and its twin do not count, since the line says `predicted`, unless predictions are for
    several devices.
    """
    several = len({case.device for case in cases if case.is_predicted}) > 1
    told = [case if several else case.twin for case in cases]
    fields = [field for field in Case.__struct_fields__ if field not in ("model", "strategy", "levers")]
    num_models = len({case.model for case in told})  # each may have its own default batch
    return tuple(field for field in fields if len({(case.model, getattr(case, field)) for case in told}) > num_models)


def trial_line(record: Record, *, varying: Sequence[str] = ()) -> str:
    """Return a trial as one line: `mnist-cnn:channels=32 segments:k=4 round 1: ok, peak 44.4 MiB, step 241 ms`."""
    readings = record.readings
    seconds = readings.step_seconds
    kind = evidence(record.case, record.environment)
    facts = [
        kind if kind != "measured" and record.outcome == "ok" else record.outcome.replace("_", " "),
        f"peak {bytes_text(readings.peak_bytes)}" if readings.peak_bytes is not None else "",
        f"step {seconds_text(median(seconds))}" if seconds else "",
        (record.detail or "").splitlines()[0] if record.detail else "",
    ]
    where = [str(record.case.model), strategy_label(record.case.label), *settings(record.case, varying)]
    return f"{' '.join(where)} round {record.round}: {', '.join(fact for fact in facts if fact)}"


def settings(case: Case, fields: Sequence[str]) -> list[str]:
    """Return the values of these fields that a case has, like `batch size 8`."""
    shown = msgspec.structs.replace(case, device=device_word(case.device))
    values = {field.replace("_", " "): getattr(shown, field) for field in fields}
    return [f"{name} {value}" for name, value in values.items() if value is not UNSET]


def last_lines(log: Path, *, encoding: str = "utf-8") -> list[str]:
    """Return the last lines of a log, at most NUM_LINES, safe to print, with their indents; none without a log."""
    try:
        with safe_files.opened(log) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - NUM_BYTES))
            lines = file.read(NUM_BYTES).decode(errors="replace").rstrip().splitlines()
    except OSError:
        return []
    shown = [line[:WIDEST] for line in lines[-NUM_LINES:]]
    return [" " * (len(line) - len(line.lstrip(" "))) + plain(line, encoding=encoding) for line in shown]


def cost_lines(cost: SweepCost, *, basis: str | None = None, start: str = "", unknown: str = "") -> list[str]:
    """Return what a sweep costs, in lines.

    `basis` says where the seconds come from, `start` how long a trial takes to start, `unknown` why some have none.
    """

    def range_text(span: Bounds) -> str:
        ends = [f"{end:,.0f}" if end >= 10 or end == int(end) else f"{end:.2g}" for end in (span.least, span.most)]
        return " to ".join(dict.fromkeys(ends))

    num_measured = cost.num_trials - cost.num_predicted - cost.num_rehearsed
    others = {"predictions": cost.num_predicted, "rehearsals": cost.num_rehearsed}
    named = " and ".join(f"{number:,} of them {name}" for name, number in others.items() if number)
    lines = [f"{count_text(cost.num_trials, 'trial')}{f', {named}, which need no device' if named else ''}"]
    if not num_measured:
        return lines
    until = f"; a round is timed for up to {cost.sampling_seconds:g} s, or a few steps" if cost.sampling_seconds else ""
    lines.append(f"steps: {range_text(cost.steps)}{until}; several steps of less than 1 ms make one sample")
    if cost.gpu_seconds is not None:
        lines.append(f"GPU seconds: {range_text(cost.gpu_seconds)}, predicted, not measured")
        lines.append(f"  {start} a trial; {basis}")
    if unknown and cost.num_unknown:
        lines.append(f"GPU seconds of {count_text(cost.num_unknown, 'trial')}: not known: {unknown}")
    return lines
