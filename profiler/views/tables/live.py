"""What a terminal shows while trials run: the table as far as it has come, what runs now, and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from profiler.analysis.rows import rows
from profiler.core.record import Record
from profiler.views.tables import terminal

MOST_ROWS = 200  # records that are drawn anew each time; of more only the count is shown
PER_SECOND = 4  # how often the screen is drawn


class LiveScreen:
    """The lines that stand at the end of a terminal while trials run, and are gone afterwards.

    `first_guess` are the seconds that `num_trials` may take, which are told until one has ended.
    """

    def __init__(
        self,
        console: Console,
        *,
        clock: Callable[[], float] = time.monotonic,
        first_guess: float = 0.0,
        num_trials: int = 0,
    ) -> None:
        self.now = ""  # what runs
        self._console, self._clock = console, clock
        self._first_guess, self._total = first_guess, num_trials
        self._records: list[Record] = []
        self._num_ended = 0
        self._since = clock()
        self._drawn: tuple[int, int, Text] | None = None  # records, columns, and their table
        self._spinner = Spinner("line")
        self._live = Live(console=console, get_renderable=self.screen, transient=True, refresh_per_second=PER_SECOND)

    def start(self) -> None:
        self._live.start()

    def stop(self) -> None:
        self._live.stop()

    def add(self, record: Record, *, total: int) -> None:
        """Takes the record of a trial that has ended, and how many trials there are in all."""
        self._num_ended += 1
        self._total, self.now = total, ""
        if len(self._records) < MOST_ROWS:
            self._records.append(record)

    def screen(self) -> Group:
        """Returns what is shown now."""
        table = self._table()
        is_whole = len(table.plain.splitlines()) < self._console.height - 2
        bar = Table.grid(padding=(0, 1))
        bar.add_row(self._spinner, Text(self.line(), overflow="ellipsis", no_wrap=True))
        return Group(table, Text(), bar) if table and is_whole else Group(bar)

    def line(self) -> str:
        """`3/21  segments:k=4 round 1: time  0:00:07, about 0:00:40 left`."""
        seconds = self._clock() - self._since
        count = f"{self._num_ended}/{self._total}" if self._total else ""
        left = self._left(seconds)
        times = f"{_clock_text(seconds)}{f', about {_clock_text(left)} left' if left is not None else ''}"
        return "  ".join(text for text in (count, times, self.now) if text)

    def _left(self, seconds: float) -> float | None:
        """Seconds by the mean of the trials that have ended; before, by the guess."""
        if not self._total:
            return None
        if not self._num_ended:
            return self._first_guess - seconds if seconds < self._first_guess else None
        return seconds / self._num_ended * (self._total - self._num_ended)

    def _table(self) -> Text:
        records, width = len(self._records), self._console.width
        if not records or self._num_ended > MOST_ROWS:
            return Text()
        if self._drawn is None or self._drawn[:2] != (records, width):
            text = terminal.bodies(rows(tuple(self._records)), width=width, encoding=self._console.encoding)
            self._drawn = records, width, text
        return self._drawn[2]


def _clock_text(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
