"""What a command does, without a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from profiler.core.case import Case
    from profiler.core.record import Record

Show = Callable[["Record", int, "Path"], None]  # a record, how many trials are left, and the log of its trial


STARTING = "torch is imported, and devices are looked for"  # what is done before there can be a trial


class Interrupted(BaseException):
    """A signal asked this process to end; raised while trials run, it ends them and keeps what they measured."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_code(self) -> int:
        return 128 + self.number


class Screen:
    """What a workflow tells of its progress; this one shows nothing."""

    def say(self, text: str) -> None:
        """Takes a line beside the result."""

    @contextmanager
    def watch(self, cases: Sequence[Case]) -> Iterator[Show]:
        """Is entered while trials of these cases run; yields what is called with each record once it is stored."""
        yield lambda record, left, log: None

    @contextmanager
    def doing(self, text: str) -> Iterator[None]:
        """Is entered while something runs that is no trial, `text` being what."""
        yield

    def at_work(self, text: str) -> None:
        """Takes what runs now: of a trial its pass, of what is done its step."""


SILENT = Screen()
