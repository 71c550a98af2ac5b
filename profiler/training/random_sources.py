"""Random generators of a step besides torch's default ones: Python's, numpy's, and those that the model owns."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from profiler.core.user_code import is_theirs
from profiler.training.workload import Workload

STATE_BYTES = 16  # of the digest of a generator's state


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
    return {"torch": own, **{name: _digest(_state(source)) for name, source in _sources(workload).items()}}


@contextmanager
def kept() -> Iterator[None]:
    """Restore, on exit, the states of Python's and numpy's global generators."""
    before = random.getstate()
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        random.setstate(before)
        if numpy:
            numpy.random.set_state(state)


def _sources(workload: Workload) -> dict[str, Any]:
    """Return every generator except torch's default ones, by a name that says where it is."""
    sources = _globals()
    modules: dict[str, ModuleType] = {}
    for path, module in workload.module.named_modules():
        home = sys.modules.get(type(module).__module__)
        if home is not None and _is_users(home):
            modules[home.__name__] = home
        sources |= {f"{path}.{name}" if path else name: value for name, value in _generators(vars(module))}
    for name, home in modules.items():
        sources |= {f"{name}.{key}": value for key, value in _generators(vars(home))}
    return sources


def _globals() -> dict[str, Any]:
    numpy = sys.modules.get("numpy")
    return {"random": random} | ({"numpy.random": numpy.random} if numpy else {})


def _generators(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    kinds: tuple[type, ...] = (random.Random, torch.Generator)
    if "numpy" in sys.modules:
        from numpy.random import Generator, RandomState  # noqa: PLC0415  only where the model has imported numpy

        kinds = (*kinds, Generator, RandomState)
    return ((name, value) for name, value in list(values.items()) if isinstance(value, kinds))


def _is_users(module: ModuleType) -> bool:
    place = getattr(module, "__file__", None)
    return place is not None and is_theirs(place)


def _seed(source: Any, number: int) -> None:
    if isinstance(source, torch.Generator):
        source.manual_seed(number)
    elif source is random or isinstance(source, random.Random):
        source.seed(number)
    elif bits := _bit_generator(source):
        bits.state = type(bits)(number).state
    else:  # numpy.random, or a RandomState, which take 32 bits
        source.seed(number % 2**32)


def _state(source: Any) -> bytes:
    if isinstance(source, torch.Generator):
        return bytes(source.get_state().tolist())
    if source is random or isinstance(source, random.Random):
        return repr(source.getstate()).encode()
    if bits := _bit_generator(source):
        return repr(bits.state).encode()
    name, keys, *rest = source.get_state()
    return bytes(keys.tobytes()) + repr((name, rest)).encode()


def _bit_generator(source: Any) -> Any:
    """Return a numpy Generator's bit generator; None for anything else."""
    return None if isinstance(source, ModuleType) else getattr(source, "bit_generator", None)


def _digest(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(hashlib.blake2b(state, digest_size=STATE_BYTES).digest()), dtype=torch.uint8)
