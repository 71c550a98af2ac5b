"""Names what keeps a tensor alive: a model attribute, a global, a closure variable, or an object of the user's."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from types import CellType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch

from profiler.core.user_code import is_theirs
from profiler.training.workload import Workload, dense_parts

DEEPEST = 10  # references from a tensor to a name
MOST = 20_000  # objects that are searched


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
        for path, module in workload.module.named_modules():
            self._add(module, f"of '{path}'" if path else "of the model")
        for module in list(sys.modules.values()):
            if place := _file_of(module):
                self._add(module, f"in {place}")
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
                if found := self._named(referrer):
                    named.append(Holder(found, self._most(referrer)))
                    continue
                owner = owner or _users_kind(referrer)
                above.append(referrer)
            if named:
                return min(named, key=lambda holder: holder.name)  # referrers come in no fixed order
            if not above or len(seen) > MOST:
                break
            level = above
        if not self._children:
            return None
        return Holder(f"a {owner}" if owner else "an object without a name")

    def _add(self, thing: Any, name: str) -> None:
        self._names[id(thing)] = self._names[id(vars(thing))] = vars(thing), name

    def _most(self, referrer: Any) -> int | None:
        """Return the maxlen of a bounded deque between the referrer and the tensor; None without one."""
        while (referrer := self._children.get(id(referrer))) is not None:
            if isinstance(referrer, deque) and referrer.maxlen is not None:
                return referrer.maxlen
        return None

    def _named(self, referrer: Any) -> str | None:
        child = self._children[id(referrer)]
        if id(referrer) in self._names:
            values, name = self._names[id(referrer)]
            key = _key_of(values.items(), child)
            return f"`{key}` {name}" if key else None
        if isinstance(referrer, type):
            key = _key_of(vars(referrer).items(), self._children.get(id(child), child))
            return f"`{key}` of the class {referrer.__name__}" if key else None
        if isinstance(referrer, FunctionType) and referrer.__closure__ and isinstance(child, tuple):
            return self._in_closure(referrer, self._children.get(id(child)))
        return None

    def _in_closure(self, function: FunctionType, cell: Any) -> str | None:
        if not isinstance(cell, CellType):
            return None
        names = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        name = next((name for name, own in names if own is cell), None)
        return f"`{name}` in the closure of {function.__name__}" if name else None


def _key_of(items: Iterable[tuple[str, Any]], value: Any) -> str | None:
    return next((key for key, held in items if held is value), None)


def _file_of(module: ModuleType | None) -> str | None:
    """Return the file name of a module that is the user's; None for any other."""
    place = getattr(module, "__file__", None)
    return Path(place).name if place and is_theirs(place) else None


def _users_kind(thing: Any) -> str | None:
    """Return the name of an object's class if the user wrote it, else None."""
    kind = type(thing)
    return kind.__name__ if _file_of(sys.modules.get(kind.__module__)) else None
