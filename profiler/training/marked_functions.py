"""Functions that the user marked so that each call in a forward is a block; outside of gcprof they run unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from types import MethodType
from typing import Any
from weakref import WeakSet

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


def are_there() -> bool:
    """Whether any function is marked in this process."""
    return bool(_marked)


def push(listener: Any) -> None:
    """Route the calls of marked functions to a listener until `pop`; None makes them plain calls."""
    _listeners.append(listener)


def pop() -> None:
    """Undo the last `push`."""
    _listeners.pop()


@contextmanager
def listened(listener: Any) -> Iterator[None]:
    """Route the calls of marked functions to a listener inside the context."""
    push(listener)
    try:
        yield
    finally:
        pop()
