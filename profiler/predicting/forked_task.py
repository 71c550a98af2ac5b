"""Runs a function in a forked process, in parallel with this one."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

T = TypeVar("T")


class ForkedTask(Generic[T]):
    """The result of `work`, run in a fork that ends with this process. Only for processes without threads."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._told: Connection | None = None
        context = multiprocessing.get_context("fork")
        told, telling = context.Pipe(duplex=False)
        with telling, suppress(OSError):  # if no process can start, the result is None
            context.Process(target=_tell, args=(telling, work), daemon=True).start()
            self._told = told

    def result(self) -> T | None:
        """Wait for the result, once. None if the work failed or its process died: the caller does the work itself."""
        told, self._told = self._told, None
        if told is None:
            return None
        with told:
            try:
                value: T = told.recv()
            except (EOFError, OSError):  # the process ended before it had sent everything
                return None
            return value


def _tell(telling: Connection, work: Callable[[], object]) -> None:
    with suppress(Exception):  # the waiting process repeats the work, which raises there
        telling.send(work())
