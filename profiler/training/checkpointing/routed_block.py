"""A block whose calls go elsewhere: its class becomes a subclass of its own, which stands above its hooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import MethodType
from typing import Any, Protocol

from torch import nn


class Route(Protocol):
    """Where the calls of a block go. While it is `inside`, the block does its own work."""

    inside: bool

    def call(self, block: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        """Returns what a call of the block returns."""

    def call_forward(self, forward: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Returns what a call of the block's own `forward` returns, which goes past the hooks."""


class RoutedBlock(nn.Module):
    """Base of the classes of routed blocks.

    Its call is above the block's hooks, as `checkpoint(block, x)` is: they run where the block does its own work, in
    the forward and in the recompute, and not where the module's forward calls it.
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Leaves out the block's own, which may enter its subclasses in a register."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        to = self.__dict__.get("_route")  # None in what Python makes of this class, as slices of a Sequential
        if to is None or to.inside:
            return super().__call__(*arguments, **keywords)
        return to.call(self, *arguments, **keywords)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """By the block's own class, since pickle cannot find this one by name."""
        reduced: Any = super().__reduce_ex__(protocol)
        function, arguments, *state = reduced
        own = tuple(_own(argument) if argument is type(self) else argument for argument in arguments)
        return _rebuilt, (function, own), *state


def route(block: nn.Module, to: Route) -> None:
    """Change the block's class so that its calls go to the route.

    Parameters, names, `repr`, `isinstance` and signatures stay as they are. Nothing is a closure over the block, so
    that a deep copy of the module runs the copied blocks.
    """
    block.__dict__["_route"] = to
    if not isinstance(block, RoutedBlock):  # several names may be of one block
        block.__class__ = _routed(type(block))


def unroute(block: nn.Module) -> None:
    """Give the block its own class back."""
    if isinstance(block, RoutedBlock):
        del block.__dict__["_route"]
        block.__class__ = _own(type(block))


def _routed(kind: type[nn.Module]) -> type[nn.Module]:
    """The subclass for blocks of a class: the same for all of them, so that compiled code is found again."""
    bases = (RoutedBlock, kind)
    there = next((subclass for subclass in type.__subclasses__(kind) if subclass.__bases__ == bases), None)
    if there is not None:
        return there
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    make: Any = type(kind)
    subclass: type[nn.Module] = make(kind.__name__, bases, {**names, "forward": _past_hooks(kind)})
    return subclass


def _past_hooks(kind: type[nn.Module]) -> Callable[..., Any]:
    """The `forward` of the subclass, which models may call by its name."""

    @wraps(kind.forward)
    def forward(self: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        to, own = self.__dict__.get("_route"), MethodType(kind.forward, self)
        if to is None or to.inside:
            return own(*arguments, **keywords)
        return to.call_forward(own, *arguments, **keywords)

    return forward


def own_class(module: nn.Module) -> type[nn.Module]:
    """The class of a module as it was before it was routed."""
    kind: type[nn.Module] = _own(type(module))
    return kind


def _own(kind: type) -> type:
    """The class of which this one is the routed one."""
    return next(base for base in kind.__mro__ if not issubclass(base, RoutedBlock))


def _rebuilt(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    block = function(*arguments)
    block.__class__ = _routed(type(block))
    return block
