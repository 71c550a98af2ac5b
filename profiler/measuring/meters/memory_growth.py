"""Reads how memory grows: the bytes that each step leaves, what made and keeps them; and those that passes leave."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar

import msgspec
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from profiler.core.errors import is_theirs, users_line
from profiler.core.units import bytes_text
from profiler.measuring.devices import Device
from profiler.measuring.meters.operators import operator_name
from profiler.training.optimizers import hooks_of, let_go, states
from profiler.training.workload import Step, Workload, allocated_bytes, dense_parts, storage_bytes, tensors, uncollected

T = TypeVar("T")
NUM_STEPS = 8  # after the one that was measured: memory that grows in all of them is no cache that is filled once
MOST_NAMED = 2
DEEPEST = 10  # references from a tensor to a name
MOST = 20_000  # objects that are searched


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes that each of several consecutive steps leaves behind, besides first gradients and optimizer state."""

    steps: tuple[int, ...]
    collected_bytes: int  # of all that was left, what Python's garbage collector freed
    places: tuple[str, ...]  # where the most was made and what keeps it, in words

    def __str__(self) -> str:
        least, most = min(self.steps), max(self.steps)
        rate = bytes_text(most) if least == most else f"{bytes_text(least)} to {bytes_text(most)}"
        where = f": {'; '.join(self.places)}" if self.places else ""
        if self.collected_bytes >= sum(self.steps) / 2:
            return f"{rate} a step are left in reference cycles, until Python's collector runs{where}"
        return f"memory grows by {rate} in each of {len(self.steps)} steps{where}"


def lasting_bytes(workload: Workload, optimizer: torch.optim.Optimizer, known: set[int]) -> int:
    """Return the bytes that stop growing by themselves: gradients, and state of parameters that are not `known`."""
    gradients = [parameter.grad for parameter in workload.module.parameters() if parameter.grad is not None]
    made = [dict(state) for parameter, state in states(optimizer) if id(parameter) not in known]
    kinds = {parameter.device.type for parameter in workload.module.parameters()}
    return storage_bytes([tensor for tensor in (*gradients, *tensors(made)) if tensor.device.type in kinds])


def with_state(optimizer: torch.optim.Optimizer) -> set[int]:
    """Return the ids of the parameters that have optimizer state."""
    return {id(parameter) for parameter, state in states(optimizer) if state}


def left_by(
    workload: Workload, optimizer: torch.optim.Optimizer, device: Device, run: Callable[[], T]
) -> tuple[T, int | None]:
    """Run a step; return what it returns, and the bytes that it leaves behind; None if the device does not count."""
    known, held = with_state(optimizer), device.held_bytes()
    lasting = lasting_bytes(workload, optimizer, known)
    result = run()
    now = device.held_bytes()
    lasting -= lasting_bytes(workload, optimizer, known)
    return result, None if held is None or now is None else now - held + lasting


def read(
    workload: Workload,
    optimizer: torch.optim.Optimizer,
    device: Device,
    step: Step,
    *,
    with_operators: bool = True,
    is_alone: bool = True,
) -> Growth | None:
    """Run NUM_STEPS steps; return what each of them has left behind.

    None if one of them has left nothing, after which no more are run if the process `is_alone`, or if bounded queues
    keep all that stays. Python's garbage collector is off meanwhile, and runs at the end. `with_operators` runs Python
    at each operator, which compiled code does not allow.
    """
    gc.collect()  # what earlier steps left in cycles is not of these
    made, known = _Made(), with_state(optimizer)
    lasting, held = [lasting_bytes(workload, optimizer, known)], device.held_bytes()
    with uncollected(), device.watch(0) as watch:
        watch.mark()
        for _ in range(NUM_STEPS):
            with made if with_operators else nullcontext():
                step(lambda phase: None)
            made.end_step()
            watch.mark()
            lasting.append(lasting_bytes(workload, optimizer, known))
            before, held = held, device.held_bytes()
            if is_alone and before is not None and held is not None and held - before <= lasting[-1] - lasting[-2]:
                return None
        places = made.places(workload)
        gc.collect()
        watch.mark()
    *steps, collection = watch.spans()
    left = tuple(
        span.end_bytes - span.start_bytes - (after - before)
        for span, before, after in zip(steps, lasting, lasting[1:], strict=False)
    )
    endless = tuple(text for text, ends in places if not ends)
    if min(left) <= 0 or (places and not endless):
        return None
    return Growth(steps=left, collected_bytes=collection.start_bytes - collection.end_bytes, places=endless)


class _Made(TorchDispatchMode):
    """A dispatch mode that follows every storage that operators make, by weak references."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made: dict[int, tuple[StorageWeakRef, int, str]] = {}  # its bytes; the operator and the user's line
        self._by_step: list[dict[str, int]] = []  # after each step: the live bytes, by place

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(out):
            known = self._made.get(storage._cdata)
            if storage._cdata not in given and (known is None or known[0].expired()):
                line = users_line(sys._getframe(1))
                place = operator_name(func) + (f" ({line})" if line else "")
                self._made[storage._cdata] = StorageWeakRef(storage), allocated_bytes(storage), place
        return out

    def end_step(self) -> None:
        """Count the bytes that are still alive, by place."""
        self._made = {number: made for number, made in self._made.items() if not made[0].expired()}
        held: dict[str, int] = {}
        for _, nbytes, place in self._made.values():
            held[place] = held.get(place, 0) + nbytes
        self._by_step.append(held)

    def places(self, workload: Workload) -> list[tuple[str, bool]]:
        """Return where most of the growth of the last two steps was made, with what keeps it, and if that is bounded.

        Tensors that are saved for a backward are kept by a graph, and the graph by another tensor.
        """
        grown: dict[str, int] = {}  # the lesser growth of the two
        for place in self._by_step[-1]:
            before, then, now = (held.get(place, 0) for held in self._by_step[-3:])
            grown[place] = min(then - before, now - then)
        named = []
        most = sorted((place for place in grown if grown[place] > 0), key=lambda place: -grown[place])
        for place in most[:MOST_NAMED]:
            own = {number for number, made in self._made.items() if made[2] == place}
            if keeper := holder(own, workload):
                text = f"{place}, kept by {keeper.name}"
            else:
                keeper = holder(set(self._made) - own, workload) or Holder("something")
                text = f"{place}, kept by the graph of what {keeper.name} holds"
            named.append((text, keeper.most is not None))
        return named


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [part.untyped_storage() for tensor in tensors(tree) for part in dense_parts(tensor)]


class Holder(NamedTuple):
    """What keeps tensors alive, in words, and how many it keeps at most; None if unbounded."""

    name: str
    most: int | None = None


def holder(storages: set[int], workload: Workload) -> Holder | None:
    """Return what keeps tensors of these storages alive; None if no Python object refers to any of them."""
    for name, buffer in workload.module.named_buffers():
        if _is_of(buffer, storages):
            return Holder(f"the buffer `{name}`")
    kept = [found for found in gc.get_objects() if issubclass(type(found), torch.Tensor) and _is_of(found, storages)]
    return _Search(workload).nearest(kept) if kept else None


def _is_of(tensor: torch.Tensor, storages: set[int]) -> bool:
    try:
        return any(part.untyped_storage()._cdata in storages for part in dense_parts(tensor))
    except (NotImplementedError, RuntimeError):  # a tensor without a storage, or an uninitialized one
        return False


class _Search:
    """Follows references backwards from tensors to the nearest object that has a name."""

    def __init__(self, workload: Workload) -> None:
        self._names: dict[int, tuple[dict[str, Any], str]] = {}  # by identity: an object's attributes, and its name
        parts = [(part, f"of '{path}'" if path else "of the model") for path, part in workload.module.named_modules()]
        files = [(module, f"in {place}") for module in list(sys.modules.values()) if (place := _file_of(module))]
        for thing, name in (*parts, *files):
            self._names[id(thing)] = self._names[id(vars(thing))] = vars(thing), name
        self._children: dict[int, Any] = {}  # by identity of a referrer: what it refers to

    def nearest(self, kept: list[Any]) -> Holder | None:
        """Return the nearest named object that refers to any of these, directly or through other objects.

        None if no Python object refers to them: only autograd holds them.
        """
        level, seen, owner = kept, {id(self), id(kept), id(vars(self))}, None
        seen |= {id(one) for one in kept}
        for _ in range(DEEPEST):
            at = {id(one): one for one in level}
            above: list[Any] = []
            named: list[Holder] = []
            seen |= {id(level), id(at), id(above), id(self._children)}
            for referrer in gc.get_referrers(*level):
                if id(referrer) in seen or isinstance(referrer, FrameType):
                    continue
                seen.add(id(referrer))
                self._children[id(referrer)] = next(at[id(one)] for one in gc.get_referents(referrer) if id(one) in at)
                if found := self._named_by(referrer):
                    named.append(Holder(found, self._most(referrer)))
                    continue
                kind = type(referrer)
                owner = owner or (kind.__name__ if _file_of(sys.modules.get(kind.__module__)) else None)
                above.append(referrer)
            if named:
                return min(named, key=lambda holder: holder.name)  # referrers come in no fixed order
            if not above or len(seen) > MOST:
                break
            level = above
        if not self._children:
            return None
        return Holder(f"a {owner}" if owner else "an object without a name")

    def _most(self, referrer: Any) -> int | None:
        """Return the maxlen of a bounded deque between the referrer and the tensor; None without one."""
        while (referrer := self._children.get(id(referrer))) is not None:
            if isinstance(referrer, deque) and referrer.maxlen is not None:
                return referrer.maxlen
        return None

    def _named_by(self, referrer: Any) -> str | None:
        child = self._children[id(referrer)]
        if id(referrer) in self._names:
            values, name = self._names[id(referrer)]
            key = _key_of(values.items(), child)
            return f"`{key}` {name}" if key else None
        if isinstance(referrer, type):
            key = _key_of(vars(referrer).items(), self._children.get(id(child), child))
            return f"`{key}` of the class {referrer.__name__}" if key else None
        if isinstance(referrer, FunctionType) and referrer.__closure__ and isinstance(child, tuple):
            cells = zip(referrer.__code__.co_freevars, referrer.__closure__, strict=True)
            key = _key_of(cells, self._children.get(id(child)))
            return f"`{key}` in the closure of {referrer.__name__}" if key else None
        return None


def _key_of(items: Iterable[tuple[str, Any]], value: Any) -> str | None:
    return next((key for key, held in items if held is value), None)


def _file_of(module: ModuleType | None) -> str | None:
    """Return the file name of a module that is the user's; None for any other."""
    place = getattr(module, "__file__", None)
    return Path(place).name if place and is_theirs(place) else None


class Leftovers:
    """The bytes that were allocated in one pass and are still allocated in a later one.

    On CUDA the caching allocator counts them. The CPU's allocator counts only under a profiler, which would have to run
    through every pass, the timed one too. So there the parameters, buffers and batch of every model are watched by weak
    references to their storages. That costs nothing while a step runs, and finds every graph that is kept, since a
    graph holds the parameters that it leads to. What else such a graph holds is missed: the bytes are a lower bound.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._before = device.held_bytes()  # held by others, before the first pass
        self._watched: dict[int, tuple[StorageWeakRef, int]] = {}
        self._hooked: list[tuple[weakref.ref[nn.Module], list[weakref.ref[nn.Parameter]]]] = []  # models with hooks
        self._at_start: tuple[int, int] | None = None  # all bytes and those of models; None once a pass has built one
        self.nbytes = 0  # that earlier passes left allocated in the current one
        self.model_bytes = 0  # of these, the bytes of models and their batches
        self.most_bytes = 0  # the largest `nbytes` of any pass

    def start(self) -> None:
        """Count the bytes held as a pass begins; the device was released before.

        Parameters of a freed model that only their own hooks keep alive are freed first: a user's program, which builds
        its model once, does not leak them.
        """
        for module, parameters in self._hooked:
            if module() is None:
                let_go(parameters)
        self._at_start = self.held_bytes(), self.held_model_bytes()

    def built(self, workload: Workload) -> None:
        """Watch a model that was built. Storages of an earlier pass that it reuses do not count as left."""
        hooked = [weakref.ref(parameter) for parameter in workload.module.parameters() if hooks_of(parameter)]
        self._hooked += [(weakref.ref(workload.module), hooked)] if hooked else []
        module = workload.module
        held = [*module.parameters(), *module.buffers(), *tensors(workload.batch)]
        storages = {storage._cdata: storage for storage in _storages(held)}
        again = sum(nbytes for place, nbytes in self._alive().items() if place in storages)
        gradients = [parameter.grad for parameter in workload.module.parameters() if parameter.grad is not None]
        gradient_bytes = sum(map(allocated_bytes, _storages(gradients)))  # of a reused model: a new one has none
        self._watched |= {
            place: (StorageWeakRef(storage), allocated_bytes(storage)) for place, storage in storages.items()
        }
        if self._at_start:
            nbytes, model_bytes = self._at_start
            self.model_bytes = max(0, model_bytes - again)
            self.nbytes = max(self.model_bytes, nbytes - again - gradient_bytes)
            self.most_bytes = max(self.most_bytes, self.nbytes)
            self._at_start = None

    def in_peak(self, held_before: int) -> int:
        """Return the bytes of earlier passes in the peak of a pass that has ended and began with `held_before`.

        If the held bytes did not grow in that pass, they are a cache that is made once and reused: only models count.
        """
        return self.nbytes if self.held_bytes() > held_before else self.model_bytes

    def held_bytes(self) -> int:
        """Return the bytes held now beyond those before the first pass, as far as the device counts them."""
        held = self._device.held_bytes()
        return self.held_model_bytes() if held is None or self._before is None else max(0, held - self._before)

    def held_model_bytes(self) -> int:
        """Return the bytes of parameters, buffers and batches that are still alive, of all models that were built."""
        return sum(self._alive().values())

    def _alive(self) -> dict[int, int]:
        return {place: nbytes for place, (reference, nbytes) in self._watched.items() if not reference.expired()}
