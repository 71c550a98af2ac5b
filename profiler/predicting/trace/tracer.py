"""Records every operator of a step, and the lifetimes of storages."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from profiler.core.errors import Unsupported
from profiler.core.own_thread import replaced
from profiler.core.trace_data import Operator
from profiler.measuring.meters.flops import kind_of
from profiler.predicting.trace.fake_tensors import DEVICE
from profiler.predicting.trace.unfused import uncompiled
from profiler.training.checkpointing.called_blocks import CalledBlock, running_name
from profiler.training.workload import rounded

Hidden = Callable[[Any, Any, Any], int]  # the bytes that an operator with these arguments takes besides its outputs

_ON_HOST: ContextVar[bool] = ContextVar("_ON_HOST", default=False)


PLACE = ("category", "module", "operator", "phase")  # attributes of a storage that are strings


@contextmanager
def on_host() -> Iterator[None]:
    """Leave out storages created within: they are on the host, not on the traced device."""
    token = _ON_HOST.set(True)
    try:
        yield
    finally:
        _ON_HOST.reset(token)


class StorageLife:
    """The lifetime of one tracked storage; `died` is None while it is live."""

    __slots__ = ("born", "died", "let_go", "nbytes", "watch", *PLACE)

    def __init__(self, nbytes: int, born: int, operator: str, module: str, phase: str) -> None:
        self.nbytes, self.born, self.operator, self.module, self.phase = nbytes, born, operator, module, phase
        self.died: int | None = None
        self.let_go: int | None = None  # if saves are recorded: from when on only autograd holds it
        self.category: str | None = None
        self.watch: weakref.ref[Any] | None = None


class Tracer(TorchDispatchMode):
    """Dispatch mode that records every operator and every storage of what runs under it.

    `device` is the kind whose allocator rounds bytes up; `hidden` returns what was measured of an operator's hidden
    bytes. In phase `backward`, operators with gradients enabled are recomputes: autograd itself disables gradients.
    """

    def __init__(self, module: nn.Module, *, device: str = "cpu", hidden: Hidden | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lives: list[StorageLife] = []
        self.operators: list[Operator] = []
        self.phase = "before"
        self.uses_host = False
        self.device = device
        self._hidden = hidden
        self._names = {id(child): name for name, child in reversed(list(module.named_modules()))}
        self._stack = [""]
        self._called: list[CalledBlock] = []  # running calls that are blocks, the innermost last
        self._is_paused = False
        self._there: dict[int, StorageLife] = {}  # live storages, by address
        self._module_of_node: dict[int, str] = {}  # by the sequence number of an autograd node
        self._owners = {id(p): name.rpartition(".")[0] for name, p in module.named_parameters()}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # for the reason given in QuickFakeMode

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # it sees what compiled code runs, not how it is compiled

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE and type(args[0]) is FakeTensor:
            return args[0].fake_device
        kind = kind_of(func)
        if kind.is_question or self._is_paused:
            return func(*args, **(kwargs or {}))
        out = func(*args, **(kwargs or {}))
        phase, module = self._place()
        hidden = self._hidden(func, args, kwargs) if self._hidden and not _ON_HOST.get() else 0
        self.operators.append(Operator(kind.name, module, phase, *kind.work(args, kwargs or {}, out), hidden))
        self.uses_host = self.uses_host or _ON_HOST.get()
        if not kind.is_view and not _ON_HOST.get():
            for tensor in tensors_of(out):
                self._find(tensor, kind.name, module, phase)
        return out

    def hold(self, tensor: torch.Tensor, operator: str, module: str) -> StorageLife | None:
        """Track a storage that no operator made; None if it is tracked already, or empty."""
        during = 0 if self.phase == "before" else 1  # it is live from the next operator on
        return self._find(tensor, operator, module, self.phase, after=during)

    def life(self, tensor: torch.Tensor) -> StorageLife | None:
        """Return the lifetime of a tensor's storage, if it is tracked."""
        return self._there.get(tensor.untyped_storage()._cdata)

    def name_of(self, module: nn.Module) -> str | None:
        """Return a module's full name, below the innermost running CalledBlock if any; None outside of the model."""
        return running_name(module, self._names, self._called)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing of what runs within."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    @property
    def module(self) -> str:
        """The full name of the running module; empty outside of all modules."""
        return self._stack[-1]

    @contextmanager
    def modules(self) -> Iterator[None]:
        """Track which module is running."""
        call = nn.Module.__call__

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return call(module, *args, **kwargs)
            is_block = isinstance(module, CalledBlock)
            self._stack.append(self.name_of(module) or self._stack[-1])
            self._called += [module] if is_block else []  # type: ignore[list-item]  # by is_block
            try:
                return call(module, *args, **kwargs)
            finally:
                self._stack.pop()
                del self._called[len(self._called) - is_block :]

        with replaced(nn.Module, __call__=called):
            yield

    def _place(self) -> tuple[str, str]:
        """Return the phase and the module of the operator that has just run."""
        phase = self._phase()
        if phase == "backward":
            return phase, self._of_node()
        return phase, self._remember() if phase in ("forward", "recompute") else ""

    def _phase(self) -> str:
        if self.phase != "backward":
            return self.phase
        is_recompute = torch.is_grad_enabled() and torch._C._current_graph_task_id() != -1
        return "recompute" if is_recompute else "backward"

    def _remember(self) -> str:
        """Return the running module, and remember it for the node that autograd made for this operator, if any."""
        module = self._stack[-1]
        self._module_of_node.setdefault(torch._C._autograd._get_sequence_nr() - 1, module)
        return module

    def _of_node(self) -> str:
        node: Any = torch._C._current_autograd_node()
        if node is None:
            return ""
        variable = getattr(node, "variable", None)  # of AccumulateGrad
        if variable is not None:
            return self._owners.get(id(variable), "")
        return self._module_of_node.get(node._sequence_nr(), "")

    def _find(self, tensor: torch.Tensor, operator: str, module: str, phase: str, after: int = 0) -> StorageLife | None:
        if tensor.layout is not torch.strided:
            raise Unsupported("a sparse tensor cannot be traced: only its data tell its size")
        return self._follow(tensor.untyped_storage(), operator, module, phase, after)

    def _follow(
        self, storage: torch.UntypedStorage, operator: str, module: str, phase: str, after: int = 0
    ) -> StorageLife | None:
        key = storage._cdata
        if key in self._there:
            return None
        nbytes = rounded(storage.nbytes(), self.device)
        if not nbytes:
            return None
        life = StorageLife(nbytes, len(self.operators) + after, operator, module, phase)
        life.watch = weakref.ref(storage, lambda _: self._gone(key))
        self._there[key] = life
        self.lives.append(life)
        return life

    def _gone(self, key: int) -> None:
        self._there.pop(key).died = len(self.operators)


uncompiled(Tracer.__torch_dispatch__)


def tensors_of(tree: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors in nested tuples, lists and dicts, in order."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from tensors_of(item)
    elif isinstance(tree, dict):
        yield from tensors_of(tuple(tree.values()))
