"""State that a step changes beside parameters: random generators, plain Python in modules, what user code reaches."""

from __future__ import annotations

import hashlib
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from types import BuiltinMethodType, CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn

from profiler.core.errors import is_theirs
from profiler.training.workload import Workload, local

OF_TORCH = {*vars(nn.Module()), "_route", "_compiled_call_impl"}  # attributes of every module, and of a routed block
DEEPEST = 8  # levels of nesting that are read
GROUPS = (list, tuple, set, frozenset, deque)
KINDS = (bool, int, float, complex, str, bytes, torch.Tensor, dict, *GROUPS)
Image = dict[str, str]  # from the full name of an attribute to the text of its value
MANY = 10_000  # what containers with more items hold is not looked at; they themselves are put back
LARGE = 2**24  # bytes: the values of larger tensors and arrays are not kept
CACHED = type(lru_cache(len))
WRAPPERS = (MethodType, BuiltinMethodType, partial, staticmethod, classmethod, property, CACHED)
WRAPPED = ("__func__", "__self__", "__wrapped__", "func", "args", "keywords", "fget", "fset")  # of one or another
ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
UNSEEDED = 67280421310721  # default_rng_seed_val in c10/core/GeneratorImpl.h
PLAIN = {bool, int, float, str, tuple, list, dict, OrderedDict, set, type(None)}  # of most attributes of a module
STATE_BYTES = 16  # of the digest of a generator's state
_BEFORE: ContextVar[dict[int, Callable[[], object]] | None] = ContextVar("_BEFORE", default=None)  # what puts each back
Undo = Callable[[], object]


def image(module: nn.Module) -> Image:
    """Return the text of every attribute that is plain, or an unregistered tensor."""
    return {
        f"{path}.{name}" if path else name: told
        for path, submodule in module.named_modules()
        for name, value in list(vars(submodule).items())
        if name not in OF_TORCH and (told := text(value)) is not None
    }


def moved(before: Image, after: Image) -> Image:
    """Return the attributes that changed, with the text of what they hold now."""
    return {name: after.get(name, "gone") for name in {**before, **after} if before.get(name) != after.get(name)}


@contextmanager
def kept(module: nn.Module) -> Iterator[None]:
    """Restore, on exit, what a forward changes: what `put_back` does from the module, and all values of buffers."""
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]  # BatchNorm's raise no version
    with put_back(module):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, values in buffers:
                    buffer.copy_(values)


def content(value: Any) -> list[Any]:
    """Return what a set, list or deque holds, or a dict's keys and values, in order; [] for any other value."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    return list(value) if isinstance(value, (set, list, deque)) else []


def refill(value: Any, held: list[Any]) -> None:
    """Give a dict, set, list or deque its content back; an unchanged one is left alone: it may refuse to be changed."""
    if [*map(id, content(value))] == [*map(id, held)]:
        return
    if isinstance(value, list):
        value[:] = held
    elif not isinstance(value, dict):
        value.clear()
        value.update(held) if isinstance(value, set) else value.extend(held)
    else:  # only what differs is changed, where the order allows it: another thread may be reading
        before = dict(zip(held[: len(held) // 2], held[len(held) // 2 :], strict=True))
        for key in [key for key in value if key not in before]:
            del value[key]
        is_in_order = [*value] == [*before][: len(value)]
        for key, item in before.items():
            if not is_in_order:
                value.pop(key, None)
            if key not in value or value[key] is not item:
                value[key] = item


def text(value: Any, depth: int = DEEPEST) -> str | None:
    """Return a text that identifies a plain value or a container; None for any other value."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    if isinstance(value, torch.Tensor):
        own = local(value.detach())
        shape = f"{tuple(own.shape)} {own.dtype}"
        if own.layout is not torch.strided or own.is_meta:
            return shape
        values = own.cpu().contiguous().flatten().view(torch.uint8).numpy().data
        return f"{shape} {hashlib.blake2b(values, digest_size=16).hexdigest()}"
    if not depth or not isinstance(value, (dict, *GROUPS)):
        return None
    if isinstance(value, dict):
        texts = [f"{key!r}: {text(held, depth - 1)}" for key, held in value.items() if text(key, 0) is not None]
        return f"{{{', '.join(texts)}}}"
    texts = [str(text(held, depth - 1)) for held in value]
    return f"{{{', '.join(sorted(texts))}}}" if isinstance(value, (set, frozenset)) else f"[{', '.join(texts)}]"


@contextmanager
def put_back(*roots: Any) -> Iterator[None]:
    """Restore, on exit, the state that is reached from these objects, and the states of generators.

    So are the default dtype, what hooks on all modules and optimizers reach, and the user's modules that are imported.
    """
    homes = vars(nn.modules.module), vars(sys.modules[torch.optim.Optimizer.__module__])
    kinds = [hooks for home in homes for name, hooks in home.items() if name.startswith("_global_")]
    on_all = [hook for hooks in kinds if isinstance(hooks, dict) for hook in hooks.values()]
    reached = _reached((*roots, *on_all))
    dtype, imported = torch.get_default_dtype(), {name: home for name, home in sys.modules.items() if _is_users(name)}
    with kept_generators(filter(is_generator, reached)):
        undoing = [undo for thing in reached if (undo := _undo(thing)) is not None]
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            sys.modules.update(imported)
            for undo in reversed(undoing):
                undo()


def generators(*roots: Any) -> list[torch.Generator]:
    """Return torch's generators that are reached from these objects."""
    return [thing for thing in _reached(roots) if isinstance(thing, torch.Generator)]


def _reached(roots: Iterable[Any]) -> list[Any]:
    reached: dict[int, Any] = {}
    waiting = list(roots)
    while waiting:
        thing = waiting.pop()
        if not isinstance(thing, ATOMS) and id(thing) not in reached:
            reached[id(thing)] = thing
            waiting += _held(thing)
    return list(reached.values())


def _held(thing: Any) -> list[Any]:
    """Return what an object of the user's holds; nothing for what is a library's."""
    if isinstance(thing, (dict, list, tuple, set, frozenset, deque)):
        items = thing.values() if isinstance(thing, dict) else thing
        return [] if len(thing) > MANY else [*items, *getattr(thing, "__dict__", {}).values()]
    if isinstance(thing, CellType):
        return contents(thing)
    if isinstance(thing, FunctionType):
        if not _is_users(thing.__module__):
            return []
        named = [vars(home)[name] for home, names in _named(thing) for name in names & vars(home).keys()]
        return [*(thing.__closure__ or ()), *(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values(), *named]
    if isinstance(thing, (type, ModuleType)):
        is_class = isinstance(thing, type) and _is_users(thing.__module__)
        return [*vars(thing).values(), *thing.__bases__] if is_class else []
    if isinstance(thing, WRAPPERS):
        return [getattr(thing, name, None) for name in WRAPPED]
    is_open = isinstance(thing, (nn.Module, SimpleNamespace)) or _is_users(type(thing).__module__)
    return [type(thing), getattr(thing, "__dict__", None)] if is_open else []


def _undo(thing: Any) -> Undo | None:
    """Return a function that puts back what the object holds now; None for what cannot change."""
    if isinstance(thing, (dict, list, set, deque)):
        return partial(refill, thing, content(thing))
    if isinstance(thing, CellType):
        return partial(_fill, thing, contents(thing))
    if isinstance(thing, (FunctionType, type)):
        is_class = isinstance(thing, type) and _is_users(thing.__module__)
        places = [(thing, None)] if is_class else _named(thing)
        return partial(_assign, [(home, names, dict(vars(home))) for home, names in places])
    if isinstance(thing, CACHED):  # it may keep a fake tensor of what has run since
        misses = thing.cache_info().misses
        return lambda: thing.cache_clear() if thing.cache_info().misses != misses else None
    if isinstance(thing, torch.Tensor) and not nn.parameter.is_lazy(thing):
        return _undo_tensor(thing)
    numpy = sys.modules.get("numpy")
    if numpy and isinstance(thing, numpy.ndarray) and thing.flags.writeable and 0 < thing.nbytes <= LARGE:
        return partial(thing.__setitem__, ..., thing.copy())
    return None


def _undo_tensor(tensor: torch.Tensor) -> Undo:
    """Return a function that gives the tensor the gradient that it has now and, if it is small, its values."""
    gradient, own, before = tensor.grad if tensor.is_leaf else None, tensor.detach(), None
    is_writable = not (isinstance(tensor, nn.Parameter) or tensor.is_inference()) and tensor.layout is torch.strided
    if is_writable and tensor.nbytes <= LARGE:
        overlaps = any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True))
        before = None if overlaps else own.clone()
    version = None if before is None else own._version

    def undo() -> None:
        if tensor.is_leaf and tensor.grad is not gradient:
            tensor.grad = gradient
        if before is not None and own._version != version:
            own.copy_(before)

    return undo


def _fill(cell: CellType, held: list[Any]) -> None:
    if held:
        cell.cell_contents = held[0]
    elif contents(cell):
        del cell.cell_contents


def contents(cell: CellType) -> list[Any]:
    """Return what a cell of a closure holds, in a list; [] where it is empty."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _assign(places: list[tuple[Any, set[str] | None, dict[str, Any]]]) -> None:
    """Give classes and modules their attributes back: those of these names, or all."""
    for home, names, before in places:
        for name in vars(home).keys() | before.keys() if names is None else names:
            if name not in before and name in vars(home):
                delattr(home, name)
            elif vars(home).get(name) is not before.get(name):
                setattr(home, name, before[name])


def _named(function: Any) -> list[tuple[ModuleType, set[str]]]:
    """Return the module of a function of the user's, others of the user's that it names, and the names it looks up."""
    home = sys.modules.get(function.__module__ or "")
    if home is None or not is_users(home) or vars(home) is not getattr(function, "__globals__", None):
        return []
    names = set(_names_in_code(function.__code__))
    homes = [home, *(value for name in names if isinstance(value := vars(home).get(name), ModuleType))]
    return [(place, names) for place in homes if is_users(place)]


def _names_in_code(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in_code(constant)


def _is_users(name: str | None) -> bool:
    module = sys.modules.get(name or "")
    return module is not None and is_users(module)


def seed(number: int, workload: Workload | None = None) -> None:
    """Seed torch, Python's `random`, numpy, and every generator that the model or its code's module owns."""
    torch.manual_seed(number)
    for source in (_sources(workload) if workload else _global_sources()).values():
        _remember(source).seed(number)


def random_states(workload: Workload, device: torch.device) -> dict[str, torch.Tensor]:
    """Return a digest of the state of every generator by its name; torch's generator of the device is `torch`."""
    states = {"torch": torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()}
    for name, source in _sources(workload).items():
        state = _access(source).read()
        if isinstance(state, torch.Tensor):
            written = state.numpy().tobytes()
        elif isinstance(state, tuple) and hasattr(state[1], "tobytes"):  # numpy.random's, or a RandomState's
            kind, keys, *rest = state
            written = keys.tobytes() + repr((kind, rest)).encode()
        else:
            written = repr(state).encode()
        digest = bytearray(hashlib.blake2b(written, digest_size=STATE_BYTES).digest())
        states[name] = torch.frombuffer(digest, dtype=torch.uint8)
    return states


@contextmanager
def kept_generators(owned: Iterable[Any] = ()) -> Iterator[None]:
    """Restore, on exit, the states of all global generators, of those given, and of every one that is seeded within."""
    before: dict[int, Callable[[], object]] = {}
    token = _BEFORE.set(before)
    is_used = torch.cuda.is_initialized()
    devices = range(torch.cuda.device_count()) if is_used else ()
    awaited = dict(vars(torch.cuda._lazy_seed_tracker))  # the seeds that a GPU gets when it is first used
    try:
        for source in (*_global_sources().values(), *owned):
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


def _remember(source: Any) -> _Access:
    access, before = _access(source), _BEFORE.get()
    if before is not None and id(source) not in before:
        before[id(source)] = partial(access.write, access.read())
    return access


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
    sources = _global_sources()
    modules: dict[str, ModuleType] = {}
    for path, module in workload.module.named_modules():
        home = sys.modules.get(type(module).__module__)
        if home is not None and is_users(home):
            modules[home.__name__] = home
        owned = [(name, value) for name, value in list(vars(module).items()) if is_generator(value)]
        sources |= {f"{path}.{name}" if path else name: value for name, value in owned}
    for name, home in modules.items():
        sources |= {f"{name}.{key}": value for key, value in list(vars(home).items()) if is_generator(value)}
    return sources


def _global_sources() -> dict[str, Any]:
    numpy = sys.modules.get("numpy")
    return {"random": random} | ({"numpy.random": numpy.random} if numpy else {})


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
