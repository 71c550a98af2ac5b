"""In the caller's own training: a module is changed by a strategy or a plan, and a loop is watched."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import nn

from profiler import scripts
from profiler.core import catalogue, plan_file
from profiler.core.case import Choice
from profiler.core.errors import Unsupported, UserError, refuse_idle
from profiler.core.plan_file import PlanFile
from profiler.core.record import Applied
from profiler.scripts.report import Process, read_process
from profiler.training import STRATEGIES, called_blocks
from profiler.training import blocks as finding
from profiler.training.block_segments import apply_strategy, repaired, with_note
from profiler.training.models.user import call
from profiler.training.strategies import carry_out
from profiler.training.workload import Workload
from profiler.views.tables import Table, text
from profiler.views.tables.script import watched
from profiler.workflows.in_process.answering import in_words_of_python
from profiler.workflows.in_process.results import Shown


@in_words_of_python()
def apply(
    module: nn.Module,
    strategy: str | PlanFile | Path,
    *,
    example: Any = None,
    blocks: str | None = None,
    repair_batchnorm: bool = False,
) -> Applied:
    """Change a module in place so that its backward recomputes what the strategy or the plan says.

    `strategy` is a word with options (`segments:k=4`, `all`), a plan of `gcprof.plan`, or the Path of a plan's file.
    `blocks` is a pattern of names, `model.layers.*`, or several, `enc1,enc2`; without it blocks are found by the
    module's structure, and a plan names its own. `example` is a batch as the module takes it (a dict as keywords, a
    tuple as arguments): strategies that run several blocks together look at one forward of it, unless the module is
    made of Sequentials alone. Names of parameters stay as they are. `repair_batchnorm` holds BatchNorm while
    its block is recomputed, so that its running statistics are those without checkpointing. Returns the real split and
    how often each block is recomputed; a note in it names BatchNorm that is recomputed and not held.

    Raises TypeError for what is no module, or neither a strategy nor a plan, UserError for an unknown strategy or a
    file that is no plan, and Unsupported where it cannot be applied: no blocks, a module that is checkpointed already,
    a plan of another model. With `repair_batchnorm` it is also raised if no block has a BatchNorm; the module has been
    changed by then.

    Example::

        module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
        gcprof.apply(module, "segments:k=4").split  # '3x2+2': three segments of two modules, the last two kept
    """
    if not isinstance(module, nn.Module):
        what = f"{module.__name__} itself" if isinstance(module, type) else f"a {type(module).__name__}"
        raise TypeError(f"apply changes an nn.Module, and was given {what}; measure and predict take functions")
    if isinstance(strategy, str):
        choice = catalogue.resolve(Choice(strategy), STRATEGIES, what="strategy")
        function, options = catalogue.load(choice, STRATEGIES)
        name, found = choice.name, finding.find_blocks(module, blocks)
    elif isinstance(strategy, (PlanFile, Path)):
        refuse_idle(
            {f"blocks='{blocks}'": blocks is not None}, "where a plan names its own blocks", hint="leave it out"
        )
        file = strategy if isinstance(strategy, PlanFile) else plan_file.read(strategy)
        name, function, options = "plan", carry_out, {"plan": file}
        found = tuple(dict.fromkeys(block.partition(called_blocks.SIGN)[0] for block in file.fingerprint))
    else:
        what = "None" if strategy is None else f"of type {type(strategy).__name__}"
        wanted = "a word such as 'all' or 'segments:k=4', a plan of gcprof.plan, or the Path of a plan's file"
        raise TypeError(f"a strategy is {wanted}, not {what}")
    workload = Workload(module=module, blocks=found, batch=example, loss=_look)
    if called_blocks.are_marked() and example is not None:  # blocks are calls then, as where they run several times
        workload = called_blocks.marked(workload)
    chain, applied = apply_strategy(workload, name, lambda chain: function(chain, **options))
    called_blocks.follow_forwards(chain)
    return (
        repaired(chain, applied) if repair_batchnorm else with_note(chain, applied, mended_by="repair_batchnorm=True")
    )


def _look(module: nn.Module, example: Any) -> Any:
    if example is None:
        raise Unsupported("this is not a plain Sequential: pass a batch as example= to observe how its blocks connect")
    return call(module, example)


class Watching(Shown):
    """What ran within `with gcprof.watch() as watch:`; `print` and a notebook show it as a table."""

    def __init__(self) -> None:
        self._lines: list[dict[str, Any]] = []
        self._watch: Any = None

    def __enter__(self) -> Watching:
        folder = str(Path(scripts.__path__[0]) / "inject")  # which is no package
        sys.path.insert(0, folder)
        try:
            watch = import_module("gcprof_watch").Watch(is_always_told=True)
        finally:
            sys.path.remove(folder)
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
