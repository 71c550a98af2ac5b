"""Runs work in a thread of its own, one at a time: no interrupt arrives there, and functions are replaced for it alone.

Python raises KeyboardInterrupt, and what handlers of signals raise, in the main thread alone; PyTorch's modes are on in
the thread that entered them alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from typing import Any, Generic, TypeVar
from unittest import mock

POLL_SECONDS = 0.05  # how often work that waits for other work looks whether it is still wanted
T = TypeVar("T")
_ONE_AT_A_TIME = threading.Lock()
_RUNNING: list[_Task[Any]] = []  # at most one


class _Stopped(BaseException):
    """Raised in work whose caller was interrupted."""


class _Task(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self.is_stopped = False  # its caller was interrupted
        self.began = threading.Event()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=copy_context().run, args=(self._run,), daemon=True)
        self.result: T
        self.error: BaseException | None = None

    def _run(self) -> None:
        while not _ONE_AT_A_TIME.acquire(timeout=POLL_SECONDS):
            if self.is_stopped:
                return
        self.began.set()
        _RUNNING.append(self)
        try:
            if not self.is_stopped:
                self.result = self._work()
        except BaseException as error:  # noqa: BLE001  it is raised in the caller's thread
            self.error = error
        finally:
            _RUNNING.clear()
            _ONE_AT_A_TIME.release()
            self.ended.set()


def run(work: Callable[[], T]) -> T:
    """Return what the work returns, or raise what it raises; work that such work calls runs where it is.

    An interrupt of the caller is raised once the work has reached its next `stop_if_interrupted`, and has ended.
    """
    if any(task.thread is threading.current_thread() for task in _RUNNING):
        return work()
    task = _Task(work)
    try:
        task.thread.start()
        task.ended.wait()
    except BaseException:
        task.is_stopped = True
        while task.began.is_set() and not task.ended.is_set():
            with suppress(BaseException):  # a second interrupt waits as the first does
                task.ended.wait()
        raise
    if task.error is not None:
        try:
            raise task.error
        finally:
            task.error = None  # its traceback leads here: a cycle would keep the caller's tensors alive
    return task.result


def stop_if_interrupted() -> None:
    """Raise, in work whose caller was interrupted, what ends it. Call it where everything can be put back."""
    if _RUNNING and _RUNNING[0].is_stopped:
        raise _Stopped


@contextmanager
def replaced(owner: Any, **functions: Callable[..., Any]) -> Iterator[None]:
    """Replace functions of a class or a module within, for this thread alone; in others they are what they were."""
    thread = threading.get_ident()
    with ExitStack() as stack:
        for name, function in functions.items():
            either: Any = _either(thread, getattr(owner, name), function)
            either = staticmethod(either) if name == "__new__" else either
            stack.enter_context(mock.patch.object(owner, name, either))
        yield


def _either(thread: int, own: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def either(*arguments: Any, **keywords: Any) -> Any:
        return (function if _is(thread) else own)(*arguments, **keywords)

    return either


def _is(thread: int) -> bool:
    return threading.get_ident() == thread


_is._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch.compiler.assume_constant_result, without torch
