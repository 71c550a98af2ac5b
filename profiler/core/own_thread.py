"""Runs work in a thread of its own, one at a time: no interrupt arrives there, and functions are replaced for it alone.

Python raises KeyboardInterrupt, and what handlers of signals raise, in the main thread alone; PyTorch's modes are on in
the thread that entered them alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from typing import Any, TypeVar
from unittest import mock

T = TypeVar("T")
_ONE_AT_A_TIME = threading.Lock()
_RUNNING: list[tuple[threading.Thread, threading.Event]] = []  # at most one, and whether its caller was interrupted


class _Stopped(BaseException):
    """Raised in work whose caller was interrupted."""


def run(work: Callable[[], T]) -> T:
    """Return what the work returns, or raise what it raises; work that such work calls runs where it is.

    An interrupt of the caller is raised once the work has reached its next `stop_if_interrupted`, and has ended.
    """
    if any(thread is threading.current_thread() for thread, _ in _RUNNING):
        return work()
    future, interrupted = Future[T](), threading.Event()
    own = (_carry_out, work, future, interrupted)
    thread = threading.Thread(target=copy_context().run, args=own, daemon=True)
    try:
        thread.start()
        return future.result()
    except BaseException:  # raised again
        interrupted.set()
        while not (future.cancel() or future.done()):
            with suppress(BaseException):  # a second interrupt waits as the first does
                wait([future])
        raise
    finally:
        del future, own  # the traceback of its error leads here: a cycle would keep the caller's tensors alive


def _carry_out(work: Callable[[], T], future: Future[T], interrupted: threading.Event) -> None:
    with _ONE_AT_A_TIME:
        if not future.set_running_or_notify_cancel():
            return
        _RUNNING.append((threading.current_thread(), interrupted))
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  it is raised in the caller's thread
            future.set_exception(error)
        finally:
            _RUNNING.clear()
            del future  # as above


def stop_if_interrupted() -> None:
    """Raise, in work whose caller was interrupted, what ends it. Call it where everything can be put back."""
    if any(interrupted.is_set() for _, interrupted in _RUNNING):
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
