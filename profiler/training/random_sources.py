"""Random generators of a step besides torch's default ones: Python's, numpy's, and those that the model owns."""

from __future__ import annotations

import hashlib
import random
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import torch

from profiler.core.user_code import is_theirs
from profiler.training.workload import Workload

UNSEEDED = 67280421310721  # default_rng_seed_val in c10/core/GeneratorImpl.h
PLAIN = {bool, int, float, str, tuple, list, dict, OrderedDict, set, type(None)}  # of most attributes of a module
STATE_BYTES = 16  # of the digest of a generator's state
_BEFORE: ContextVar[dict[int, Callable[[], object]] | None] = ContextVar("_BEFORE", default=None)  # what puts each back


def seed(workload: Workload, number: int) -> None:
    """Seed torch, Python's `random`, numpy, and every generator that the model or its code's module owns."""
    torch.manual_seed(number)
    for source in _sources(workload).values():
        _seed(source, number)


def seed_globals(number: int) -> None:
    """Seed the global generators of torch, Python and numpy."""
    torch.manual_seed(number)
    for source in _globals().values():
        _seed(source, number)


def states(workload: Workload, device: torch.device) -> dict[str, torch.Tensor]:
    """Return a digest of the state of every generator by its name; torch's generator of the device is `torch`."""
    own = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    return {"torch": own, **{name: _digest(source) for name, source in _sources(workload).items()}}


@contextmanager
def kept(owned: Iterable[Any] = ()) -> Iterator[None]:
    """Restore, on exit, the states of all global generators, of those given, and of every one that is seeded within."""
    before: dict[int, Callable[[], object]] = {}
    token = _BEFORE.set(before)
    is_used = torch.cuda.is_initialized()
    devices = range(torch.cuda.device_count()) if is_used else ()
    awaited = dict(vars(torch.cuda._lazy_seed_tracker))  # the seeds that a GPU gets when it is first used
    try:
        for source in (*_globals().values(), *owned):
            _remember(source)
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        for put_back in before.values():
            put_back()
        _BEFORE.reset(token)
        if not is_used:
            vars(torch.cuda._lazy_seed_tracker).update(awaited)
            if torch.cuda.is_initialized():  # seed as the first use would have, had nothing been seeded in between
                torch.cuda.manual_seed_all(UNSEEDED)
                for call in filter(None, torch.cuda._lazy_seed_tracker.get_calls()):
                    call[0]()


def _remember(source: Any) -> None:
    before = _BEFORE.get()
    if before is not None and id(source) not in before:
        access = _access(source)
        before[id(source)] = partial(access.write, access.read())


class _Access(NamedTuple):
    """How the state of a generator is read, written and seeded."""

    read: Callable[[], Any]
    write: Callable[[Any], object]
    seed: Callable[[int], object]


def _access(source: Any) -> _Access:
    if isinstance(source, torch.Generator):
        return _Access(source.get_state, source.set_state, source.manual_seed)
    if source is random or isinstance(source, random.Random):
        return _Access(source.getstate, source.setstate, source.seed)
    bits = None if isinstance(source, ModuleType) else getattr(source, "bit_generator", None)
    if bits is not None:  # of a numpy Generator
        write = partial(setattr, bits, "state")
        return _Access(lambda: bits.state, write, lambda number: write(type(bits)(number).state))
    # numpy.random, or a RandomState, which take 32 bits
    return _Access(source.get_state, source.set_state, lambda number: source.seed(number % 2**32))


def _sources(workload: Workload) -> dict[str, Any]:
    """Return every generator except torch's default ones, by a name that says where it is."""
    sources = _globals()
    modules: dict[str, ModuleType] = {}
    for path, module in workload.module.named_modules():
        home = sys.modules.get(type(module).__module__)
        if home is not None and is_users(home):
            modules[home.__name__] = home
        sources |= {f"{path}.{name}" if path else name: value for name, value in _generators(vars(module))}
    for name, home in modules.items():
        sources |= {f"{name}.{key}": value for key, value in _generators(vars(home))}
    return sources


def _globals() -> dict[str, Any]:
    numpy = sys.modules.get("numpy")
    return {"random": random} | ({"numpy.random": numpy.random} if numpy else {})


def _generators(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in list(values.items()) if is_generator(value))


def is_generator(value: Any) -> bool:
    """Whether it is a generator with a state, of Python, torch or numpy."""
    if type(value) in PLAIN:
        return False
    kinds: tuple[type, ...] = (random.Random, torch.Generator)
    if numpy := sys.modules.get("numpy.random"):  # only where the model has imported it
        kinds = (*kinds, numpy.Generator, numpy.RandomState)
    return isinstance(value, kinds) and not isinstance(value, random.SystemRandom)


def is_users(module: ModuleType) -> bool:
    """Whether it is the user's own: a script, a notebook, or a file that is not installed."""
    place = getattr(module, "__file__", None)
    return module.__name__ == "__main__" or (place is not None and is_theirs(place))


def _seed(source: Any, number: int) -> None:
    _remember(source)
    _access(source).seed(number)


def _digest(source: Any) -> torch.Tensor:
    state = _access(source).read()
    if isinstance(state, torch.Tensor):
        text = state.numpy().tobytes()
    elif isinstance(state, tuple) and hasattr(state[1], "tobytes"):  # numpy.random's, or a RandomState's
        name, keys, *rest = state
        text = keys.tobytes() + repr((name, rest)).encode()
    else:
        text = repr(state).encode()
    return torch.frombuffer(bytearray(hashlib.blake2b(text, digest_size=STATE_BYTES).digest()), dtype=torch.uint8)
