"""Routes each call that is a block of its own to that block, and checks the order of calls in every forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from profiler.core.errors import Unsupported
from profiler.training import marked_functions
from profiler.training.marked_functions import listened

CHANGED = "unlike when it was observed: a forward that depends on data cannot be cut by calls; --strategies all works"


class CalledBlock(nn.Module):
    """The n-th call of a module or a function in a forward, as a module of its own, which the model does not hold."""

    def __init__(self, name: str, path: str, called: Callable[..., Any], *, past_hooks: bool = False) -> None:
        super().__init__()
        self.name, self.path = name, path
        self.__dict__["called"] = called  # not as a child: parameters have one name
        self.past_hooks = past_hooks  # the model calls the module's `forward` directly
        self.runs_ahead = False  # computed with blocks before it
        self.calls: Calls | None = None

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the call itself; marked functions that it calls are part of it."""
        called: Any = self.called
        if not isinstance(called, nn.Module):
            with listened(None):
                return called(*arguments, **keywords)
        to: Any = called.__dict__["_route"]
        before, to.inside = to.inside, True
        try:
            with listened(None):
                return (called.forward if self.past_hooks else called)(*arguments, **keywords)
        finally:
            to.inside = before

    @property
    def kind(self) -> str:
        """The name of the class of what is called."""
        return type(self.called).__name__

    def named_modules(self, *arguments: Any, **keywords: Any) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules of the called module; for a function, only this one."""
        named = self.called.named_modules if isinstance(self.called, nn.Module) else super().named_modules
        modules: Iterator[tuple[str, nn.Module]] = named(*arguments, **keywords)
        return modules

    def bind(self, function: Callable[..., Any]) -> None:
        """Use the function of the present call. Raises Unsupported if another one was already computed ahead."""
        if self.runs_ahead and function != self.called:
            reason = (
                "is another function than before, made anew in each forward: define it once, outside of the forward"
            )
            raise Unsupported(f"'{self.name}' {reason}")
        self.__dict__["called"] = function


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
        """Follow one forward. Raises Unsupported if it ends before its last call, whose work may be done already."""
        self.begin()
        try:
            yield
        except BaseException:  # whatever ends the forward; it is raised again
            self._close()
            raise
        self.end()

    def begin(self, *_: Any) -> None:
        """Begin a forward."""
        self._done, self.is_open = 0, True
        marked_functions.push(self)

    def end(self, *given: Any) -> None:
        """End a forward; raises as `forward` does. As a hook it gets the output last, None if the forward raised."""
        self._close()
        has_raised = bool(given) and given[-1] is None
        if not has_raised and 0 < self._done < len(self._blocks):
            raise Unsupported(f"the forward ended before its call '{self._blocks[self._done].name}', {CHANGED}")

    def call_function(self, name: str, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Run a call of a marked function as its block; as a plain call if it never ran in the observed forward."""
        if all(block.path != name for block in self._blocks):
            return function(*arguments, **keywords)
        block = self.next(name)
        block.bind(function)
        return block(*arguments, **keywords)

    def next(self, path: str) -> CalledBlock:
        """Return the block of the next call. Raises Unsupported if calls come in another order than observed."""
        block = self._blocks[self._done] if self._done < len(self._blocks) else None
        if block is None or block.path != path:
            expected = f"'{block.name}'" if block else "its end"
            raise Unsupported(f"the forward called '{path}' where {expected} was expected, {CHANGED}")
        self._done += 1
        return block

    def _close(self) -> None:
        self.is_open = False
        marked_functions.pop()


class ToCalls:
    """The route of a module that is called several times."""

    def __init__(self, calls: Calls, path: str) -> None:
        self.inside = False
        self._calls, self._path = calls, path

    def call(self, block: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        return self._called(block, arguments, keywords)

    def call_forward(self, forward: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        return self._called(forward, arguments, keywords)

    def _called(self, own: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        if self._calls.is_open:
            return self._calls.next(self._path)(*arguments, **keywords)
        self.inside = True
        try:
            return own(*arguments, **keywords)
        finally:
            self.inside = False


def run_ahead(block: nn.Module) -> None:
    """Note that a block is computed before the forward calls it."""
    if isinstance(block, CalledBlock):
        block.runs_ahead = True
