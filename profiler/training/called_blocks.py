"""Blocks that are calls: of a module that runs several times in a forward, or of a function that the user marked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import update_wrapper
from types import MethodType
from typing import Any
from weakref import WeakSet

import msgspec
from torch import nn

from profiler.core.errors import Unsupported
from profiler.core.record import Note
from profiler.core.units import few
from profiler.training.blocks import Route, route, unroute
from profiler.training.observed_forward import looked, run_forward
from profiler.training.workload import Workload

SIGN = "#"  # between a block's name and the number of its call
COUNTING = ("segments", "sqrt", "recursive", "from-start", "first", "every", "plan")  # strategies that count blocks
MOST_NAMED = 3
CHANGED = "unlike when it was observed: a forward that depends on data cannot be cut by calls; --strategies all works"
# Receivers of the calls of marked functions while a forward is followed: their `call_function` returns what is returned
_listeners: list[Any] = []  # the innermost last; None within a block, whose own calls are plain
_marked: WeakSet[MarkedFunction] = WeakSet()


class MarkedFunction:
    """A function, or a method, each call of which is a block."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._name = getattr(function, "__name__", type(function).__name__).strip("<>")
        update_wrapper(self, function)
        _marked.add(self)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        listener = _listeners[-1] if _listeners else None
        if listener is None:
            return self._function(*arguments, **keywords)
        return listener.call_function(self._name, self._function, *arguments, **keywords)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Return the method bound to an instance, which is not among the arguments of the block."""
        return self if instance is None else _BoundFunction(MethodType(self._function, instance), self._name)

    def __enter__(self) -> MarkedFunction:
        return self

    def __exit__(self, *error: object) -> None:
        """Does nothing: only calls through this object are marked."""


class _BoundFunction(MarkedFunction):
    """A marked method of one instance, created at each lookup."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function, self._name = function, name


def block(function: Callable[..., Any]) -> MarkedFunction:
    """Mark a function that a forward calls in a loop, so that gcprof takes each call as a block.

    For models whose layers are no modules, or one module that runs several times. As a decorator, also of methods, or
    as a context: `with gcprof.block(layer) as run: ...`. Blocks are then `layer#1`, `layer#2`, ... in the order of
    the forward. A function should take what changes from call to call as its first argument, and besides only
    parameters, buffers, submodules of the model and plain values, or what the call before was given too: then several
    calls can be checkpointed together. Outside of gcprof a marked function is the function. It is used by
    `gcprof.apply(module, "sqrt", example=batch)`, and by all commands that are given the model.

    Example::

        def layer(x, weight):
            return torch.tanh(x @ weight)


        layer = gcprof.block(layer)  # or @gcprof.block above it


        class Net(nn.Module):
            def forward(self, x):
                for weight in self.weights:
                    x = layer(x, weight)
                return x
    """
    return MarkedFunction(function)


def are_marked() -> bool:
    """Whether any function is marked in this process."""
    return bool(_marked)


@contextmanager
def listened(listener: Any) -> Iterator[None]:
    """Route the calls of marked functions to a listener inside the context."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.pop()


def marked(workload: Workload) -> Workload:
    """Return the workload with the calls of marked functions as blocks, or as it is if its forward makes none."""
    seen = _look(workload)
    return _by_calls(workload, seen) if seen else workload


def running(workload: Workload) -> tuple[Workload, Note | None]:
    """Return the workload without blocks that do not train and never run, such as averaged copies and teachers.

    If other blocks train, one forward is run to find them. A block that trains stays, since chance may have left it
    out.
    """
    resting = [name for name in workload.blocks if rests(workload.block(name))]
    if not resting or len(resting) == len(workload.blocks):
        return workload, None
    paths = {call.path for call in _look(workload, tuple(resting))}
    idle = [name for name in resting if name not in paths]
    if not idle:
        return workload, None
    named = few(idle, MOST_NAMED)
    text = f"not counted as blocks, as they are frozen, or in evaluation mode, and no forward runs them: {named}"
    blocks = tuple(name for name in workload.blocks if name not in idle)
    return msgspec.structs.replace(workload, blocks=blocks), Note(code="GCP050", text=text)


def rests(block: nn.Module) -> bool:
    """Whether a module is frozen, or in evaluation mode."""
    return not (trains(block) and block.training)


def trains(block: nn.Module) -> bool:
    """Whether a module has trainable parameters, or no parameters at all."""
    parameters = list(block.parameters())
    return not parameters or any(parameter.requires_grad for parameter in parameters)


def repeated(workload: Workload) -> Workload:
    """Return the workload with each call of a block that runs several times as a block.

    It is returned as it is if no block runs several times, if one does not run, or if its blocks are calls already.
    """
    if workload.calls:
        return workload
    seen = _look(workload, workload.blocks)
    paths = {call.path for call in seen}
    is_same = len(seen) == len(paths) or not paths.issuperset(workload.blocks)
    return workload if is_same else _by_calls(workload, seen)


def _look(workload: Workload, blocks: tuple[str, ...] = ()) -> list[CalledBlock]:
    """Return the calls of these blocks in one forward, or else those of marked functions; all is left as it was."""
    modules = {name: workload.module.get_submodule(name) for name in blocks}

    def look(*, keeps: bool) -> list[CalledBlock]:
        seen: list[CalledBlock] = []
        for name, module in modules.items():
            route(module, _Looking(seen, name))
        try:
            with listened(None if blocks else _Looking(seen)):
                run_forward(workload, keeps=keeps)
        finally:
            for module in modules.values():
                unroute(module)
        return seen

    return looked(look)


class _Looking(Route):
    """Notes the calls of a block, or of marked functions, but for those that a noted call runs."""

    def __init__(self, seen: list[CalledBlock], path: str = "") -> None:
        self._seen, self._path = seen, path

    def called(self, block: nn.Module, own: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        self._seen.append(CalledBlock(self._path, block, past_hooks=own is not block))
        return self.run(own, arguments, keywords)

    def call_function(self, name: str, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        self._seen.append(CalledBlock(name, function))
        with listened(None):
            return function(*arguments, **keywords)


def _by_calls(workload: Workload, seen: list[CalledBlock]) -> Workload:
    """Return the workload with these calls as its blocks; a module that is called once keeps its own name."""
    counts, numbers = Counter(call.path for call in seen), Counter[str]()
    for call in seen:
        numbers[call.path] += 1
        if counts[call.path] > 1 or not isinstance(call.called, nn.Module):
            call.name = f"{call.path}{SIGN}{numbers[call.path]}"
    called = {call.name: call for call in seen if call.name != call.path}
    calls = Calls(tuple(called.values()))
    for block in called.values():
        if isinstance(block.called, nn.Module):
            route(block.called, ToCalls(calls, block.path))
    loss = workload.loss

    def followed(module: nn.Module, batch: Any) -> Any:
        with calls.forward():
            return loss(module, batch)

    return msgspec.structs.replace(
        workload, blocks=tuple(call.name for call in seen), calls=dict(called), loss=followed
    )


def follow_forwards(workload: Workload) -> None:
    """Hook the module to know where its forward begins and ends, for training loops outside of gcprof."""
    calls = next((block.calls for block in workload.calls.values() if isinstance(block, CalledBlock)), None)
    if calls is not None:
        workload.module.register_forward_pre_hook(calls.begin, prepend=True)
        workload.module.register_forward_hook(calls.end, always_call=True)


class CalledBlock(nn.Module):
    """The n-th call of a module or a function in a forward, as a module of its own, which the model does not hold."""

    def __init__(self, path: str, called: Callable[..., Any], *, past_hooks: bool = False) -> None:
        super().__init__()
        self.name = self.path = path  # of the module or the function; the name has a number where it is called again
        self.__dict__["called"] = called  # not as a child: parameters have one name
        self.past_hooks = past_hooks  # the model calls the module's `forward` directly
        self.runs_ahead = False  # computed with blocks before it
        self.calls: Calls | None = None

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the call itself; marked functions that it calls are part of it."""
        called: Any = self.called
        with listened(None):
            if not isinstance(called, nn.Module):
                return called(*arguments, **keywords)
            return called.__dict__["_route"].run(called.forward if self.past_hooks else called, arguments, keywords)

    def named_modules(self, *arguments: Any, **keywords: Any) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules of the called module; for a function, only this one."""
        named = self.called.named_modules if isinstance(self.called, nn.Module) else super().named_modules
        modules: Iterator[tuple[str, nn.Module]] = named(*arguments, **keywords)
        return modules


def running_name(module: nn.Module, names: Mapping[int, str], running: Sequence[CalledBlock]) -> str | None:
    """Return a module's full name, below the innermost of the running blocks if any; None outside of the model.

    `names` are those in the model, by the module's id.
    """
    if isinstance(module, CalledBlock):
        return module.name
    name = names.get(id(module))
    if name is None or not running:
        return name
    block = running[-1]
    inside = name.removeprefix(block.path) if f"{name}.".startswith(f"{block.path}.") else f".{name}"
    return block.name + inside


class Calls:
    """The calls of one forward, each of which goes to its block."""

    def __init__(self, blocks: tuple[CalledBlock, ...]) -> None:
        self._blocks = blocks
        self._done = 0
        self.is_open = False  # inside a forward
        for block in blocks:
            block.calls = self

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Follow one forward; raises as `end` does."""
        output = None
        self.begin()
        try:
            yield
            output = self
        finally:
            self.end(output)

    def begin(self, *_: Any) -> None:
        """Begin a forward."""
        self._done, self.is_open = 0, True
        _listeners.append(self)

    def end(self, *given: Any) -> None:
        """End a forward; `given` has last what it returned, None if it raised.

        Raises Unsupported if it returned before its last call, whose work may be done already.
        """
        self.is_open = False
        _listeners.pop()
        if given[-1] is not None and 0 < self._done < len(self._blocks):
            raise Unsupported(f"the forward ended before its call '{self._blocks[self._done].name}', {CHANGED}")

    def call_function(self, name: str, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Run a call of a marked function as its block; as a plain call if it never ran in the observed forward.

        Raises Unsupported if the function is another one than was computed ahead, with blocks before it.
        """
        if all(block.path != name for block in self._blocks):
            return function(*arguments, **keywords)
        block = self.next(name)
        if block.runs_ahead and function != block.called:
            made_anew = "is another function than before, made anew in each forward: define it once, outside of it"
            raise Unsupported(f"'{block.name}' {made_anew}")
        block.__dict__["called"] = function
        return block(*arguments, **keywords)

    def next(self, path: str) -> CalledBlock:
        """Return the block of the next call. Raises Unsupported if calls come in another order than observed."""
        block = self._blocks[self._done] if self._done < len(self._blocks) else None
        if block is None or block.path != path:
            expected = f"'{block.name}'" if block else "its end"
            raise Unsupported(f"the forward called '{path}' where {expected} was expected, {CHANGED}")
        self._done += 1
        return block


class ToCalls(Route):
    """The route of a module that is called several times."""

    def __init__(self, calls: Calls, path: str) -> None:
        self._calls, self._path = calls, path

    def called(self, block: nn.Module, own: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        if self._calls.is_open:
            return self._calls.next(self._path)(*arguments, **keywords)
        return self.run(own, arguments, keywords)
