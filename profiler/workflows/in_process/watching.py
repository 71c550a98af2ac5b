"""Watches a training loop of the caller's own, in this process: its phases, its steps and what each takes."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

from profiler import scripts
from profiler.core.errors import UserError
from profiler.scripts.report import Process, read_process
from profiler.views.tables.grid import Table, text
from profiler.views.tables.script import watched
from profiler.workflows.in_process.results import Shown


class Watching(Shown):
    """What ran within `with gcprof.watch() as watch:`; `print` and a notebook show it as a table."""

    def __init__(self) -> None:
        self._lines: list[dict[str, Any]] = []
        self._watch: Any = None

    def __enter__(self) -> Watching:
        module = _injected("gcprof_watch")
        watch = module.Watch(is_always_told=True)
        self._lines.clear()
        try:
            watch.start(self._lines.append)
        except RuntimeError as error:
            raise UserError(str(error), hint="one watch at a time: end the other one first") from None
        self._watch = watch
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        self._watch.end(error)

    @property
    def process(self) -> Process | None:
        """The phases so far, each with its passes and bytes; None before the first has ended."""
        is_on = self._watch is not None and self._watch.is_on
        end = [{"kind": "end", "steps": self._watch.step}] if is_on else []
        return read_process(f"-.{os.getpid()}", [*self._lines, *end])

    @property
    def table(self) -> str:
        """The table as text."""
        return text(self._tables()).plain

    def _tables(self) -> list[Table]:
        return [watched(self.process) if self.process else Table(title="nothing has been watched yet")]


def watch() -> Watching:
    """Watch the training within a `with` block: a table of its phases, as `gcprof rehearse -- COMMAND` prints.

    It follows the thread that enters the block, on the device that is there. On a GPU each phase has its peak, live and
    reserved bytes by PyTorch's allocator; what your code reads of them, such as `torch.cuda.max_memory_allocated`, is
    what it would be without a watch. On a CPU memory is not measured: phases and steps are counted. The block runs as
    it would otherwise, errors included; afterwards all hooks are gone. `watch.process` holds the numbers, `watch.table`
    the text.

    Raises UserError where this process is watched already.

    Example::

        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with gcprof.watch() as watch:
            for _ in range(3):
                model(torch.randn(4, 8)).sum().backward()
                optimizer.step()
        print(watch)
    """
    return Watching()


def _injected(name: str) -> Any:
    """Import a module of the folder that scripts are watched with, which is no package."""
    folder = str(Path(scripts.__path__[0]) / "inject")
    sys.path.insert(0, folder)
    try:
        return import_module(name)
    finally:
        sys.path.remove(folder)
