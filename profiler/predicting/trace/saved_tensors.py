"""Records which tensors autograd saves in a traced step, and how long, and what modules take and return.

The model's own hooks on saved tensors are followed where these only copy to the host and back.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from profiler.core.errors import Unsupported
from profiler.core.own_thread import replaced
from profiler.core.trace_data import Call, Save
from profiler.core.user_code import is_ours
from profiler.predicting.device_tracer import refused_hooks
from profiler.predicting.trace.tracer import StorageLife, Tracer, on_host
from profiler.training.workload import tensors

UNKNOWN_HOOKS = (
    "the model packs what autograd saves by hooks of its own (saved_tensors_hooks), so that the bytes of other "
    "strategies cannot be derived; `gcprof predict` runs them for each strategy"
)
OF_TORCH = ("torch.utils.checkpoint",)  # modules whose hooks are subclasses and rerun the model's own code
OWN = (
    "the model packs what autograd saves by hooks of its own (saved_tensors_hooks), which an estimate does not follow "
    "to the host and back; `gcprof rehearse` runs them"
)


class SavedTensors:
    """Has autograd keep only the shapes of the tensors that it saves.

    So a storage dies once the model's own code and autograd's engine release it, which the tracer sees. How much longer
    autograd would have held it is known from when the node releases the packed shape.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._saved: list[_SavedTensor] = []
        self._calls: list[tuple[str, int, int, tuple[int, int], list[StorageLife], list[StorageLife]]] = []
        self._stand_ins: dict[Any, torch.Tensor] = {}  # for storages that are live before the step

    @contextmanager
    def follow(self, *, calls_only: bool = False) -> Iterator[None]:
        """Record what is saved and called within. Enter it after the tracer's `modules`."""
        hooks = nullcontext() if calls_only else saved_tensors_hooks(self._pack, self._unpack)
        with replaced(nn.Module, __call__=self._calling()), hooks, refused_hooks(UNKNOWN_HOOKS):
            yield

    def close(self) -> None:
        """Give storages the lifetimes that they have when autograd keeps them. Call it after the step."""
        for life in self._tracer.lives:
            life.let_go = life.died
        for saved in self._saved:
            kept = saved.life
            if kept and kept.died is not None:
                kept.died = None if saved.released is None else max(kept.died, saved.released)

    def saves(self) -> tuple[Save, ...]:
        """Return each packed tensor, with the numbers of operators after which it was packed, used and released."""
        places, last = self._places(), len(self._tracer.operators)
        saves = []
        for saved in self._saved:
            released = last if saved.released is None else saved.released
            place = None if saved.life is None else places[saved.life]
            used = released if saved.used is None else min(saved.used, released)
            saves.append(Save(place, saved.packed, saved.unpacked, used, released))
        return tuple(saves)

    def calls(self) -> tuple[Call, ...]:
        places = self._places()
        return tuple(
            Call(name, before, last, saves, *(tuple(places[life] for life in lives) for lives in (inputs, outputs)))
            for name, before, last, saves, inputs, outputs in self._calls
        )

    def _places(self) -> dict[StorageLife, int]:
        return {life: place for place, life in enumerate(self._tracer.lives)}

    def _calling(self) -> Any:
        call, tracer = nn.Module.__call__, self._tracer

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return call(module, *args, **kwargs)
            name = tracer.name_of(module)
            if tracer.phase != "forward" or name is None:
                return call(module, *args, **kwargs)
            inputs = self._lives((args, kwargs))
            before, first = len(tracer.operators), len(self._saved)
            out = call(module, *args, **kwargs)
            saves = first, len(self._saved)
            self._calls.append((name, before, len(tracer.operators), saves, inputs, self._lives(out)))
            return out

        return called

    def _lives(self, tree: Any) -> list[StorageLife]:
        return [life for tensor in tensors(tree) if (life := self._tracer.life(tensor))]

    def _pack(self, tensor: torch.Tensor) -> _Packet:
        saved = _SavedTensor(self._tracer.life(tensor), len(self._tracer.operators))
        self._saved.append(saved)
        return _Packet(self._tracer, saved, tensor)

    def _unpack(self, packet: _Packet) -> torch.Tensor:
        saved = packet.saved
        is_first, is_static = saved.unpacked is None, saved.life is None or not saved.life.born
        if is_first:
            saved.unpacked = len(self._tracer.operators)
        if not is_static:
            assert saved.life
            unpacked = self._empty(packet.kind)
            if is_first:
                saved.watch = weakref.ref(unpacked.untyped_storage(), lambda _: self._use(saved))
            return unpacked
        if packet.kind not in self._stand_ins:
            self._stand_ins[packet.kind] = self._empty(packet.kind)
        return self._stand_ins[packet.kind]

    def _empty(self, kind: Any) -> torch.Tensor:
        size, stride, dtype, device = kind
        with self._tracer.paused():
            return torch.empty_strided(size, stride, dtype=dtype, device=device)

    def _use(self, saved: _SavedTensor) -> None:
        saved.used = len(self._tracer.operators)


class _SavedTensor:
    """One saved tensor: its storage, and the operator number of each event; None until an event has happened."""

    __slots__ = ("life", "packed", "released", "unpacked", "used", "watch")

    def __init__(self, life: StorageLife | None, packed: int) -> None:
        self.life, self.packed = life, packed
        self.unpacked: int | None = None
        self.used: int | None = None
        self.released: int | None = None
        self.watch: weakref.ref[Any] | None = None


class _Packet:
    """What autograd keeps in place of a saved tensor."""

    __slots__ = ("_tracer", "kind", "saved")

    def __init__(self, tracer: Tracer, saved: _SavedTensor, tensor: torch.Tensor) -> None:
        self._tracer, self.saved = tracer, saved
        self.kind = (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)

    def __del__(self) -> None:
        self.saved.released = len(self._tracer.operators)


@contextmanager
def user_hooks(*, on_cuda: bool) -> Iterator[None]:
    """Trace save_on_cpu as on CUDA, and raise Unsupported at other hooks there; on a CPU, hooks run as they are."""
    enter = saved_tensors_hooks.__enter__

    def entered(hooks: Any) -> Any:
        code = getattr(hooks.pack_hook, "__code__", None)
        is_moved = on_cuda and isinstance(hooks, save_on_cpu)
        if not is_moved and (type(hooks).__module__ in OF_TORCH or (code and is_ours(code.co_filename))):
            return enter(hooks)
        if on_cuda and not is_moved:
            raise Unsupported(OWN)
        return enter(saved_tensors_hooks(_to_host, torch.empty_like) if is_moved else hooks)

    with replaced(saved_tensors_hooks, __enter__=entered):
        yield


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    with on_host():
        return torch.empty_like(tensor)
