"""What is noted of a traced step on any device: operators, phases, modules, gradients, and what autograd saves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from profiler.core.errors import Unsupported
from profiler.core.own_thread import replaced
from profiler.core.trace_data import Operator, recompute_ends
from profiler.core.user_code import is_ours
from profiler.training.checkpointing.called_blocks import CalledBlock, running_name
from profiler.training.optimizers import own_tensors, state_by_parameter
from profiler.training.workload import Workload, tensors

CHECKPOINT = "torch.utils.checkpoint"  # the module whose hooks are subclasses and rerun the model's own code
OWN_HOOKS = (
    "the model packs what autograd saves by hooks of its own (saved_tensors_hooks), so that the bytes of other "
    "strategies cannot be derived"
)


class Called(NamedTuple):
    """One call of a module in a forward, with the storages that it takes and returns."""

    module: str
    before: int
    last: int
    saves: tuple[int, int]
    inputs: list[Any]
    outputs: list[Any]


class Arrived(NamedTuple):
    """A gradient that has arrived: its parameter, the operators before, the module that owns it, and its storages."""

    parameter: nn.Parameter
    at: int
    module: str
    storages: list[Any]


class Saved:
    """One tensor that autograd saves: its storages, and the operator number of each event; None until it happened."""

    __slots__ = ("packed", "released", "storages", "unpacked", "used", "watch")

    def __init__(self, storages: list[Any], packed: int) -> None:
        self.storages, self.packed = storages, packed
        self.unpacked: int | None = None
        self.used: int | None = None
        self.released: int | None = None
        self.watch: Any = None


class Packet:
    """What autograd keeps in place of a saved tensor, until it frees it."""

    __slots__ = ("_operators", "kept", "saved")

    def __init__(self, operators: list[Operator], saved: Saved, kept: Any) -> None:
        self._operators, self.saved, self.kept = operators, saved, kept

    def __del__(self) -> None:
        self.saved.released = len(self._operators)


class StepTracer(TorchDispatchMode):
    """Dispatch mode that notes the operators of a step; which of its storages are which, its subclasses know.

    In phase `backward`, operators with gradients enabled are recomputes: autograd itself disables gradients.
    `with_modules` runs Python at each module's call, which must be false where compiled code does not allow it.
    """

    patched: ClassVar[Callable[..., AbstractContextManager[Any]]] = replaced  # in all threads that a backward runs in
    saved_elsewhere: ClassVar[str]  # the command that runs a model with hooks of its own

    def __init__(self, module: nn.Module, *, with_saves: bool, with_modules: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: list[Operator] = []
        self.marks: list[tuple[str, int]] = []
        self.calls: list[Called] = []
        self.saved: list[Saved] = []
        self.arrived: list[Arrived] = []
        self.phase = "before"
        self._with_saves, self._with_modules = with_saves, with_modules
        self._names = {id(child): name for name, child in reversed(list(module.named_modules()))}
        self._owners = {id(one): name.rpartition(".")[0] for name, one in module.named_parameters()}
        self._trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._stack, self._blocks = [""], list[CalledBlock]()  # running modules and calls, the innermost last
        self._made: dict[tuple[int, int], tuple[str, int]] = {}  # by thread and node: module and operator that made it
        self._home = threading.get_ident()
        self._task: int | None = None  # of the backward that the step itself runs

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # compiled code stays compiled, and asking takes 10 us a call

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # it sees what compiled code runs, not how it is compiled

    def storages(self, tree: Any) -> list[Any]:
        """Return the storages of all tensors in any nesting, as this tracer tells them apart."""
        raise NotImplementedError

    def keep(self, tensor: torch.Tensor) -> Any:
        """Return what autograd is to keep of a tensor that it saves."""
        raise NotImplementedError

    def kept(self, packet: Packet) -> torch.Tensor:
        """Return a saved tensor of which this was kept."""
        raise NotImplementedError

    def mark(self, phase: str) -> None:
        """Begin a phase."""
        self.phase, self._task = phase, None
        self.marks.append((phase, len(self.operators)))

    @property
    def module(self) -> str:
        """The full name of the running module; empty outside of all modules."""
        return self._stack[-1]

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Note which modules run within, the gradients that arrive and, if asked for, what autograd saves."""
        with ExitStack() as stack:
            for parameter in self._trained:
                stack.enter_context(parameter.register_post_accumulate_grad_hook(self._arrive))
            if self._with_modules:
                stack.enter_context(type(self).patched(nn.Module, __call__=self._calling()))
            if self._with_saves:
                stack.enter_context(saved_tensors_hooks(self._pack, self._unpack))
                stack.enter_context(_refused_hooks(f"{OWN_HOOKS}; {self.saved_elsewhere} for each strategy"))
            yield

    def place(self, number: int) -> tuple[str, str, int]:
        """Return the phase, the module, and the operator whose backward it is, of the operator of this number."""
        node: Any = torch._C._current_autograd_node() if self.phase == "backward" else None
        task = torch._C._current_graph_task_id() if self.phase == "backward" else -1
        is_recompute = task != -1 and torch.is_grad_enabled()
        self._task = task if self._task is None and task != -1 else self._task
        if self.phase == "forward" or is_recompute:
            made = threading.get_ident(), torch._C._autograd._get_sequence_nr() - 1  # each thread has its own numbers
            self._made.setdefault(made, (self._stack[-1], number))
            return "recompute" if is_recompute else self.phase, self._stack[-1], 0
        variable = getattr(node, "variable", None)  # of AccumulateGrad
        if node is None or variable is not None:
            return self.phase, self._owners.get(id(variable), ""), 0
        thread = self._home if task == self._task else threading.get_ident()  # a backward within a recompute
        return self.phase, *self._made.get((thread, node._sequence_nr()), ("", 0))

    def _calling(self) -> Callable[..., Any]:
        call: Callable[..., Any] = nn.Module.__call__

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return call(module, *args, **kwargs)
            name = running_name(module, self._names, self._blocks)
            self._stack.append(name or self._stack[-1])
            self._blocks += [module] if isinstance(module, CalledBlock) else []
            is_noted = self.phase == "forward" and name is not None
            given = self.storages((args, kwargs)) if is_noted else []
            before, first = len(self.operators), len(self.saved)
            try:
                out = call(module, *args, **kwargs)
            finally:
                self._stack.pop()
                del self._blocks[len(self._blocks) - isinstance(module, CalledBlock) :]
            if is_noted:
                saves = first, len(self.saved)
                self.calls.append(Called(name or "", before, len(self.operators), saves, given, self.storages(out)))
            return out

        return called

    def _arrive(self, parameter: nn.Parameter) -> None:
        storages, owner = self.storages(parameter.grad), self._owners[id(parameter)]
        self.arrived.append(Arrived(parameter, len(self.operators), owner, storages))

    def _pack(self, tensor: torch.Tensor) -> Packet:
        saved = Saved(self.storages(tensor), len(self.operators))
        self.saved.append(saved)
        return Packet(self.operators, saved, self.keep(tensor))

    def _unpack(self, packet: Packet) -> torch.Tensor:
        is_first = packet.saved.unpacked is None
        if is_first:
            packet.saved.unpacked = len(self.operators)
        return self.kept(packet)


@contextmanager
def _refused_hooks(reason: str) -> Iterator[None]:
    """Raise Unsupported if the model enters hooks of its own within, which would see what autograd saves first."""
    enter = saved_tensors_hooks.__enter__

    def entered(hooks: Any) -> Any:
        if not are_known(hooks):
            raise Unsupported(reason)
        return enter(hooks)

    with replaced(saved_tensors_hooks, __enter__=entered):
        yield


def are_known(hooks: Any) -> bool:
    """Whether hooks on saved tensors are those of PyTorch's checkpoints, or gcprof's own."""
    code = getattr(hooks.pack_hook, "__code__", None)
    return type(hooks).__module__ == CHECKPOINT or bool(code and is_ours(code.co_filename))


def plain_tensors(tree: Any) -> list[torch.Tensor]:
    """Return all tensors in any nesting, but for those that torch.func wraps, which have no storages."""
    return [tensor for tensor in tensors(tree) if not torch._C._functorch.is_functorch_wrapped_tensor(tensor)]


def between_steps(workload: Workload, optimizer: torch.optim.Optimizer) -> Iterator[tuple[Any, str, str]]:
    """Yield what lives between two steps: tensors in any nesting, their category, and the module that owns them."""
    state = state_by_parameter(optimizer)
    for name, parameter in workload.module.named_parameters():
        owner = name.rpartition(".")[0]
        yield parameter.detach(), "parameters", owner
        yield parameter.grad, "gradients", owner
        yield state.get(parameter, []), "optimizer", owner
    yield own_tensors(optimizer), "optimizer", ""
    for name, buffer in workload.module.named_buffers():
        yield buffer, "buffers", name.rpartition(".")[0]
    yield workload.batch, "inputs", ""


class Categories:
    """Derives the category of a storage that a step made from its lifetime."""

    def __init__(self, marks: Sequence[tuple[str, int]], operators: Sequence[Operator]) -> None:
        spans = pairwise(marks)
        self.forwards = [(before, last) for (phase, before), (_, last) in spans if phase == "forward"]
        self._ends = recompute_ends(operators)

    def of(self, phase: str, born: int, died: int | None) -> str:
        """Return it by the phase that made the storage, and its first and last operator; None if it outlives these."""
        if phase == "forward":
            end = next(last for before, last in self.forwards if before < born <= last)
            return "saved" if died is None or died > end else "temporaries"
        is_kept = phase == "recompute" and (died is None or died > self._ends[born])
        return "recomputed" if is_kept else "temporaries"
