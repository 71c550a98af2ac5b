"""Work of a process of its own, which another core does meanwhile."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

T = TypeVar("T")


class ForkedTask(Generic[T]):
    """What `work` returns, of a fork of this process, which ends with it. Only for processes without threads."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._told: Connection | None = None
        context = multiprocessing.get_context("fork")
        told, telling = context.Pipe(duplex=False)
        with telling, suppress(OSError):  # where there is room for no process, it is as one that told nothing
            context.Process(target=_tell, args=(telling, work), daemon=True).start()
            self._told = told

    def result(self) -> T | None:
        """Waits for it, once; None where the work raised or its process ended, and is left to be done here."""
        told, self._told = self._told, None
        if told is None:
            return None
        with told:
            try:
                value: T = told.recv()
            except (EOFError, OSError):  # it ended before it told all
                return None
            return value


def _tell(telling: Connection, work: Callable[[], object]) -> None:
    with suppress(Exception):  # the process that waits does the work again, and raises it
        telling.send(work())
