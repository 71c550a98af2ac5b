"""The words of a request, and the work of each command, without a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from profiler.core.case import Case
    from profiler.core.record import Record

COMMAND: ContextVar[tuple[str, ...]] = ContextVar("COMMAND", default=())  # the words of the running command
Show = Callable[["Record", int, "Path"], None]  # a record, how many trials are left, and the log of its trial


STARTING = "torch is imported, and devices are looked for"  # what happens before there can be a trial


class Interrupted(BaseException):
    """A signal asked this process to end; raised while trials run, it ends them and keeps what they measured."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_code(self) -> int:
        return 128 + self.number


class Screen:
    """Receives the progress of a workflow; this one shows nothing."""

    def say(self, text: str) -> None:
        """Show a line that is not part of the result."""

    @contextmanager
    def watch(self, cases: Sequence[Case]) -> Iterator[Show]:
        """Context of trials of these cases; yields a function to call with each record once it is stored."""
        yield lambda record, left, log: None

    @contextmanager
    def doing(self, text: str) -> Iterator[None]:
        """Context of work that is no trial; `text` says what it is."""
        yield

    def at_work(self, text: str) -> None:
        """Show what runs now: the pass of a trial, or the step of other work."""


SILENT = Screen()
