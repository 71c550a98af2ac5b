"""What the graph of a loss keeps needlessly, on ctx and outside of the blocks; what its backward runs again."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint
from torch import nn
from torch.autograd.graph import Node
from torch.nn.modules.module import register_module_forward_pre_hook

from profiler.core.errors import frames
from profiler.core.trace_data import Operator
from profiler.core.units import bytes_text, few
from profiler.training.blocks import offered_blocks, outermost
from profiler.training.called_blocks import trains
from profiler.training.kept_state import kept
from profiler.training.observed_forward import run_forward
from profiler.training.workload import Workload, bytes_by_storage, tensors, trained

LEAST = 0.01  # of all that is saved: less is not worth a note
SAVED = "_saved_"  # prefix of a node's attributes that return what it saved
MOST_NAMED = 3  # modules
GAIN = 0.25  # of all that is saved: blocks that lower it by less are not named, as a backward takes more than that


def needless_bytes(loss: torch.Tensor, workload: Workload) -> int:
    """Return the bytes that the graph of a loss saves only for nodes that lead to no parameter and no batch tensor.

    Parameters, buffers and the batch do not count. 0 if it is at most the share LEAST of all that is saved.
    """
    wanted = {id(tensor) for tensor in (*trained(workload).values(), *tensors(workload.batch))}  # by id
    needless: dict[int, int] = {}
    needed: dict[int, int] = {}
    saved = saved_bytes(loss, workload)
    for node, is_needed in _needs(loss.grad_fn, wanted).items():
        (needed if is_needed else needless).update(saved[node])
    nbytes = sum(size for storage, size in needless.items() if storage not in needed)
    return nbytes if nbytes > LEAST * (nbytes + sum(needed.values())) else 0


def saved_bytes(loss: torch.Tensor, workload: Workload) -> dict[Node, dict[int, int]]:
    """Return what each node of a loss's graph saves, in bytes by storage, without parameters, buffers and the batch."""
    resident = bytes_by_storage(resting(workload))
    saved: dict[Node, dict[int, int]] = {}
    for node in _needs(loss.grad_fn, set()):
        # of a built-in operator, or by `save_for_backward`; for a leaf's node, the leaf
        names = [name for name in dir(node) if name.startswith(SAVED)] or ["saved_tensors", "variable"]
        own = bytes_by_storage([tensor for name in names for tensor in tensors(getattr(node, name, None))])
        saved[node] = {storage: nbytes for storage, nbytes in own.items() if storage not in resident}
    return saved


def resting(workload: Workload) -> list[torch.Tensor]:
    """Return the parameters, the buffers and the batch, which are there whatever is saved."""
    return [*workload.module.parameters(), *workload.module.buffers(), *tensors(workload.batch)]


def frozen_modules(workload: Workload) -> list[str]:
    """Return the outermost frozen modules whose output has a graph that leads to no wanted gradient."""
    wanted = {id(tensor) for tensor in (*trained(workload).values(), *tensors(workload.batch))}
    names: dict[str, None] = {}

    def is_frozen(module: nn.Module) -> bool:
        return module is not workload.module and not trains(module)

    def look(name: str) -> Any:
        def looked(module: nn.Module, inputs: Any, output: Any) -> None:
            ends = [tensor.grad_fn for tensor in tensors(output) if tensor.grad_fn is not None]
            if ends and not any(_needs(end, wanted)[end] for end in ends):
                names.setdefault(name)

        return looked

    with kept(workload.module), ExitStack() as watching:
        for name, module in outermost(workload.module, is_frozen):
            watching.enter_context(module.register_forward_hook(look(name)))
        workload.loss(workload.module, workload.batch)
    return list(names)


def _needs(first: Node | None, wanted: set[int]) -> dict[Node, bool]:
    """Return, for every node of a graph, whether a wanted tensor gets its gradient through it."""
    order: list[Node] = []
    waiting, seen = [(first, False)], set()
    while waiting:
        node, is_done = waiting.pop()
        if node is None or (node in seen and not is_done):
            continue
        if is_done:
            order.append(node)
            continue
        seen.add(node)
        waiting += [(node, True), *((below, False) for below, _ in node.next_functions)]
    needs: dict[Node, bool] = {}
    for node in order:  # a node comes after all those below it
        leaf = getattr(node, "variable", None)
        is_wanted = isinstance(leaf, nn.Parameter) or (leaf is not None and id(leaf) in wanted)  # FSDP2 gathers others
        needs[node] = is_wanted or any(needs.get(below, False) for below, _ in node.next_functions if below)
    return needs


def kept_on_ctx(loss: torch.Tensor, workload: Workload) -> dict[str, int]:
    """Return the bytes of tensors on the ctx of each class of Function in the graph of a loss, the largest first.

    Tensors saved by `save_for_backward` do not count, nor do parameters, buffers, the batch, and what Functions
    of PyTorch and of levers keep. A storage counts for the first class that has it.
    """
    seen = set(bytes_by_storage(resting(workload)))
    found: dict[str, int] = {}
    for node in reversed(_needs(loss.grad_fn, set())):  # the loss's first
        function = getattr(type(node), "_forward_cls", None)
        if function is None or function.__module__.startswith(("torch.", "profiler.training.")):
            continue
        own = bytes_by_storage(tensors(dict(getattr(node, "__dict__", {}))))
        nbytes = sum(size for storage, size in own.items() if storage not in seen)
        seen |= own.keys()
        found[function.__name__] = found.get(function.__name__, 0) + nbytes
    return {name: found[name] for name in sorted(found, key=lambda name: -found[name]) if found[name]}


class _Call(NamedTuple):
    """One call of a module: autograd numbers the nodes of a forward, and those it made begin at `first`."""

    module: str
    first: int
    last: int  # the first number after it
    inputs: dict[int, int]  # bytes by storage


class SavedByBlocks:
    """Watches the calls of every module that could be a block."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._offered = offered_blocks(workload.module)
        self._calls: list[_Call] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note each call within; the hooks change nothing."""
        names = dict.fromkeys(name for names in self._offered.values() for name in names)
        modules = [(name, self._workload.module.get_submodule(name)) for name in names]
        begun, resident = list[int](), bytes_by_storage(resting(self._workload))

        def enter(module: Any, arguments: Any, keywords: Any) -> None:
            begun.append(torch._C._autograd._get_sequence_nr())

        def leave(name: str) -> Any:
            def left(module: Any, arguments: Any, keywords: Any, output: Any) -> None:
                last, inputs = torch._C._autograd._get_sequence_nr(), tensors((arguments, keywords))
                given = {storage: size for storage, size in bytes_by_storage(inputs).items() if storage not in resident}
                self._calls.append(_Call(name, begun.pop(), last, given))

            return left

        with ExitStack() as watching:
            for name, module in modules:
                watching.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
                watching.enter_context(module.register_forward_hook(leave(name), with_kwargs=True))
            yield

    def remark(self, loss: torch.Tensor) -> str | None:
        """Return what is outside of the workload's blocks and which others hold it; None unless these save more."""
        savers: dict[int, tuple[int, int, int]] = {}  # by storage: its bytes, the first and the last node that saves it
        for node, saved in saved_bytes(loss, self._workload).items():
            for storage, nbytes in saved.items():
                number = node._sequence_nr()
                _, first, last = savers.get(storage, (nbytes, number, number))
                savers[storage] = nbytes, min(first, number), max(last, number)
        total = sum(nbytes for nbytes, _, _ in savers.values())
        own, within = self._left(self._workload.blocks, savers)
        if not total or within > total / 2:
            return None
        others = [(*self._left(names, savers), pattern) for pattern, names in self._offered.items() if pattern]
        best, _, pattern = min(others, default=(own, within, ""))
        if best > min(own, total) - GAIN * total:
            return None
        percent = (1 - within / total) * 100
        return (
            f"{percent:.0f} % of what the forward saves is outside of the blocks that strategies checkpoint; with "
            f"--blocks '{pattern}', `all` keeps and recomputes at most {bytes_text(best)} of {bytes_text(total)}"
        )

    def _left(self, names: Sequence[str], savers: dict[int, tuple[int, int, int]]) -> tuple[int, int]:
        """Return what stays where each of these blocks is a checkpoint, with what its largest recompute brings back.

        And the bytes that are saved by these blocks alone.
        """
        calls = sorted((call for call in self._calls if call.module in names), key=lambda call: call.first)
        begins = [call.first for call in calls]
        inputs = {storage: nbytes for call in calls for storage, nbytes in call.inputs.items()}

        def at(number: int) -> int | None:
            """Return the place of the call that made this node."""
            place = bisect_right(begins, number) - 1
            return place if place >= 0 and number < calls[place].last else None

        kept, within, freed = 0, 0, [0] * len(calls)
        for storage, (nbytes, first, last) in savers.items():
            begin, end = at(first), at(last)
            within += nbytes if begin is not None and end is not None else 0
            if begin is None or begin != end or storage in inputs:
                kept += nbytes
            else:
                freed[begin] += nbytes
        kept += sum(nbytes for storage, nbytes in inputs.items() if storage not in savers)
        return kept + max(freed, default=0), within


class OwnRecomputes:
    """Records what ran within a backward: the model's modules, and the custom Functions whose backward ran some.

    Autograd disables gradients in a backward, and a recompute enables them again; a hook that runs a module only to
    look at something does not.
    """

    def __init__(self) -> None:
        self.modules: dict[int, nn.Module] = {}  # by identity, in the order of their first run
        self.functions: set[str] = set()

    def watching(self) -> AbstractContextManager[Any]:
        """Watch the backward that runs in the block."""
        return register_module_forward_pre_hook(self._see)

    def _see(self, module: nn.Module, arguments: object) -> None:
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() == -1:
            return
        self.modules[id(module)] = module
        function = getattr(type(torch._C._current_autograd_node()), "_forward_cls", None)
        code = getattr(getattr(function, "backward", None), "__code__", None)
        for frame in frames(sys._getframe(1)):
            if frame.f_code is code:
                self.functions.add(function.__name__)  # type: ignore[union-attr]  # it has a backward
                break
            if frame.f_code.co_filename == torch.utils.checkpoint.__file__:
                break  # its recompute begins where a backward asks for a saved tensor, which may be a custom one's

    def names(self, workload: Workload) -> list[str]:
        """Return the outermost modules that ran in the backward and that one more forward runs too."""
        modules = {name: module for name, module in workload.module.named_modules() if id(module) in self.modules}
        seen: dict[int, None] = {}
        with ExitStack() as watching:
            for module in modules.values():
                see = module.register_forward_pre_hook(lambda module, arguments: seen.setdefault(id(module)))
                watching.enter_context(see)
            run_forward(workload, keeps=True)
        return _outermost([name for name, module in modules.items() if id(module) in seen])


def recompute_remark(names: Sequence[str]) -> str:
    """Return the text of a note on modules that run again in the backward."""
    told = few([name or "the whole model" for name in names], MOST_NAMED)
    runs = "run" if len(names) > 1 else "runs"
    text = f"the model recomputes by its own means: {told} {runs} again in its backward, with gradients on"
    return (
        f"{text}; this is not switched off here nor in any other row, and whether it changes gradients is not verified"
    )


def recomputed_modules(operators: Sequence[Operator]) -> list[str]:
    """Return the outermost modules that a traced step runs again in its backward."""
    forward, again = (
        dict.fromkeys(operator.module for operator in operators if operator.phase == phase)
        for phase in ("forward", "recompute")
    )
    return _outermost([name for name in forward if name and name in again])


def _outermost(names: Collection[str]) -> list[str]:
    """Return the names of modules that are not within another of them."""
    return [
        name
        for name in names
        if not any(name != other and (not other or name.startswith(f"{other}.")) for other in names)
    ]
