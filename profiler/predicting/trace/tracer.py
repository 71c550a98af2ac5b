"""Records every operator of a step of fake tensors, the lifetimes of storages, and what autograd saves."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from profiler.core.errors import Unsupported
from profiler.core.own_thread import replaced
from profiler.core.trace_data import Call, Operator, Save
from profiler.measuring.meters.operators import kind_of
from profiler.predicting.step_tracer import Packet, Saved, StepTracer, are_known, plain_tensors
from profiler.predicting.trace.fake_tensors import DEVICE
from profiler.predicting.trace.unfused import uncompiled
from profiler.training.workload import rounded

Hidden = Callable[[Any, Any, Any], int]  # the bytes that an operator with these arguments takes besides its outputs
OWN = (
    "the model packs what autograd saves by hooks of its own (saved_tensors_hooks), which an estimate does not follow "
    "to the host and back; `gcprof rehearse` runs them"
)
_ON_HOST: ContextVar[bool] = ContextVar("_ON_HOST", default=False)


class StorageLife:
    """The lifetime of one tracked storage; `died` is None while it is live."""

    __slots__ = ("born", "category", "died", "let_go", "module", "nbytes", "operator", "phase", "watch")

    def __init__(self, nbytes: int, born: int, operator: str, module: str, phase: str) -> None:
        self.nbytes, self.born, self.operator, self.module, self.phase = nbytes, born, operator, module, phase
        self.died: int | None = None
        self.let_go: int | None = None  # if saves are recorded: from when on only autograd holds it
        self.category: str | None = None
        self.watch: weakref.ref[Any] | None = None


class Tracer(StepTracer):
    """Dispatch mode that records every operator and every storage of what runs under it.

    `device` is the kind whose allocator rounds bytes up; `hidden` returns what was measured of an operator's hidden
    bytes. Of what autograd saves, it keeps only the shapes: so a storage dies once the model's own code and autograd's
    engine release it. How much longer autograd would have held it is known from when the node releases the shape.
    """

    saved_elsewhere = "`gcprof predict` runs them"

    def __init__(
        self, module: nn.Module, *, device: str = "cpu", hidden: Hidden | None = None, with_saves: bool = False
    ) -> None:
        super().__init__(module, with_saves=with_saves)
        self.lives: list[StorageLife] = []
        self.uses_host = False
        self.device = device
        self._hidden = hidden
        self._is_paused = False
        self._there: dict[int, StorageLife] = {}  # live storages, by address
        self._stand_ins: dict[Any, torch.Tensor] = {}  # for saved storages that are live before the step

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE and type(args[0]) is FakeTensor:
            return args[0].fake_device
        kind = kind_of(func)
        if kind.is_question or self._is_paused:
            return func(*args, **(kwargs or {}))
        out = func(*args, **(kwargs or {}))
        phase, module, _ = self.place(len(self.operators) + 1)
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

    def storages(self, tree: Any) -> list[Any]:
        return [life for tensor in plain_tensors(tree) if (life := self.life(tensor))]

    def keep(self, tensor: torch.Tensor) -> Any:
        return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device

    def kept(self, packet: Packet) -> torch.Tensor:
        saved = packet.saved
        if any(life.born for life in saved.storages):
            unpacked = self._empty(packet.kept)
            if saved.watch is None:
                saved.watch = weakref.ref(unpacked.untyped_storage(), lambda _: self._use(saved))
            return unpacked
        if packet.kept not in self._stand_ins:
            self._stand_ins[packet.kept] = self._empty(packet.kept)
        return self._stand_ins[packet.kept]

    def _empty(self, kind: Any) -> torch.Tensor:
        size, stride, dtype, device = kind
        before, self._is_paused = self._is_paused, True
        try:
            return torch.empty_strided(size, stride, dtype=dtype, device=device)
        finally:
            self._is_paused = before

    def _use(self, saved: Saved) -> None:
        saved.used = len(self.operators)

    def close(self) -> None:
        """Give storages the lifetimes that they have when autograd keeps them. Call it after the step."""
        for life in self.lives:
            life.let_go = life.died
        for saved in self.saved:
            for kept in saved.storages:
                if kept.died is not None:
                    kept.died = None if saved.released is None else max(kept.died, saved.released)

    def saves(self) -> tuple[Save, ...]:
        """Return each saved tensor, with the numbers of operators after which it was packed, used and released."""
        places, last = {life: place for place, life in enumerate(self.lives)}, len(self.operators)
        saves = []
        for saved in self.saved:
            released = last if saved.released is None else saved.released
            used = released if saved.used is None else min(saved.used, released)
            place = places[saved.storages[0]] if saved.storages else None
            saves.append(Save(place, saved.packed, saved.unpacked, used, released))
        return tuple(saves)

    def module_calls(self) -> tuple[Call, ...]:
        """Return each call of a module in a forward."""
        places = {life: place for place, life in enumerate(self.lives)}
        ends = ([tuple(places[life] for life in lives) for lives in (one.inputs, one.outputs)] for one in self.calls)
        return tuple(
            Call(one.module, one.before, one.last, one.saves, *lives)
            for one, lives in zip(self.calls, ends, strict=True)
        )

    def _find(self, tensor: torch.Tensor, operator: str, module: str, phase: str, after: int = 0) -> StorageLife | None:
        if tensor.layout is not torch.strided:
            raise Unsupported("a sparse tensor cannot be traced: only its data tell its size")
        storage = tensor.untyped_storage()
        key, nbytes = storage._cdata, rounded(storage.nbytes(), self.device)
        if key in self._there or not nbytes:
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


@contextmanager
def user_hooks(*, on_cuda: bool) -> Iterator[None]:
    """Trace save_on_cpu as on CUDA, and raise Unsupported at other hooks there; on a CPU, hooks run as they are."""
    enter = saved_tensors_hooks.__enter__

    def entered(hooks: Any) -> Any:
        is_moved = on_cuda and isinstance(hooks, save_on_cpu)
        if on_cuda and not is_moved and not are_known(hooks):
            raise Unsupported(OWN)
        return enter(saved_tensors_hooks(_to_host, torch.empty_like) if is_moved else hooks)

    with replaced(saved_tensors_hooks, __enter__=entered):
        yield


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Leave out the storage of the copy: it is on the host, not on the traced device."""
    token = _ON_HOST.set(True)
    try:
        return torch.empty_like(tensor)
    finally:
        _ON_HOST.reset(token)
