"""Redirects the calls of a block: its class becomes a subclass whose __call__ is outside of the block's hooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import MethodType
from typing import Any

from torch import nn


class Route:
    """Receiver of the calls of a block. While `inside` is true, the block runs its own forward."""

    inside = False

    def called(self, block: nn.Module, own: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        """Return what a call of the block returns; `own` is the block, or its `forward` if that was called directly."""
        return self.run(own, arguments, keywords)

    def run(self, own: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        """Run the block itself; where its `forward` was called directly, past its hooks."""
        before, self.inside = self.inside, True
        try:
            return own(*arguments, **keywords)
        finally:
            self.inside = before


class RoutedBlock(nn.Module):
    """Base of the classes of routed blocks.

    Its __call__ is outside of the block's hooks, as `checkpoint(block, x)` is: they run when the block itself runs, in
    the forward and in the recompute, not when the module's forward calls it.
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Skip the block's own __init_subclass__, which may register its subclasses."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        to = self.__dict__.get("_route")  # None in instances that Python makes of this class: slices of a Sequential
        if to is None or to.inside:
            return super().__call__(*arguments, **keywords)
        return to.called(self, self, arguments, keywords)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as an instance of the block's own class, since pickle cannot find this one by name."""
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
    if not isinstance(block, RoutedBlock):  # several names may refer to one block
        block.__class__ = _routed(type(block))


def unroute(block: nn.Module) -> None:
    """Give the block its own class back, unless FSDP2 or a parametrization made another class of the routed one."""
    block.__dict__.pop("_route", None)  # without it a routed class does as the block's own
    if RoutedBlock in type(block).__bases__:
        block.__class__ = _own(type(block))


def _routed(kind: type[nn.Module]) -> type[nn.Module]:
    """Return the routed subclass of a class, the same for all its blocks, so that compiled code is reused."""
    bases = (RoutedBlock, kind)
    there = next((subclass for subclass in type.__subclasses__(kind) if subclass.__bases__ == bases), None)
    if there is not None:
        return there
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    make: Any = type(kind)
    subclass: type[nn.Module] = make(kind.__name__, bases, {**names, "forward": _past_hooks(kind)})
    return subclass


def _past_hooks(kind: type[nn.Module]) -> Callable[..., Any]:
    """Return the `forward` of the subclass, for models that call `forward` directly."""

    @wraps(kind.forward)
    def forward(self: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        to, own = self.__dict__.get("_route"), MethodType(kind.forward, self)
        if to is None or to.inside:
            return own(*arguments, **keywords)
        return to.called(self, own, arguments, keywords)

    return forward


def own_class(module: nn.Module) -> type[nn.Module]:
    """Return the class that a module had before it was routed."""
    return _own(type(module))


def _own(kind: type) -> type[nn.Module]:
    return next(base for base in kind.__mro__ if not issubclass(base, RoutedBlock) and issubclass(base, nn.Module))


def _rebuilt(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    block = function(*arguments)
    block.__class__ = _routed(type(block))
    return block
