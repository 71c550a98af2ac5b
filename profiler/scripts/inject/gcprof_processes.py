"""Processes beside the watch's own: those that multiprocessing starts are watched, and any can be asked for its stack.

Imported by `gcprof_watch` beside it; the standard library alone.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import threading
from collections.abc import Callable
from functools import wraps
from multiprocessing import process
from typing import Any

STACK_SIGNAL, TOLD = signal.SIGRTMIN + 20, "told"  # as in profiler/scripts/stacks.py


def write_stack_on_signal(path: str, then: Callable[[], None]) -> None:
    """Have the main thread's stack written to a file when gcprof's limit ends the process, and `then` called.

    It is not called where the process is within C code.
    """
    file = open(path, "w", encoding="utf-8")  # noqa: SIM115  open as long as the process

    def tell(number: int, frame: object) -> None:
        then()
        file.write(TOLD)
        file.flush()

    if threading.current_thread() is threading.main_thread():
        signal.signal(STACK_SIGNAL, tell)
    faulthandler.register(STACK_SIGNAL, file=file, all_threads=False, chain=True)


def watch_children(watch: Any) -> None:
    """Watch those that multiprocessing forks, and hear of errors that it catches in all that it starts."""
    kind: Any = process.BaseProcess
    run, bootstrap = kind.run, kind._bootstrap

    @wraps(run)
    def run_and_tell(self_: Any) -> None:
        try:
            run(self_)
        except SystemExit as error:
            if error.code:
                watch.tell_raised(error.__context__ or error)  # torch.multiprocessing ends so after an error
            raise
        except BaseException as error:
            watch.tell_raised(error)
            raise

    @wraps(bootstrap)
    def begin_and_end(self_: Any, *words: Any, **keywords: Any) -> Any:
        try:
            return bootstrap(self_, *words, **keywords)
        finally:
            watch.end_process()
            atexit.unregister(watch.end_process)

    kind.run, kind._bootstrap = run_and_tell, begin_and_end
    os.register_at_fork(after_in_child=watch.begin_forked)
