"""Blocks that are calls: of a module that runs several times in a forward, or of a function that the user marked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from torch import nn

from profiler.core.errors import Unsupported
from profiler.core.record import Note
from profiler.core.units import few
from profiler.training import marked_functions
from profiler.training.checkpointing.observed_forward import NotKept, Refused, run_forward
from profiler.training.checkpointing.routed_block import Route, route, unroute
from profiler.training.marked_functions import listened
from profiler.training.workload import Workload

SIGN = "#"  # between a block's name and the number of its call
COUNTING = ("segments", "sqrt", "recursive", "from-start", "first", "every", "plan")  # strategies that count blocks
MOST_NAMED = 3
CHANGED = "unlike when it was observed: a forward that depends on data cannot be cut by calls; --strategies all works"


def marked(workload: Workload) -> Workload:
    """Return the workload with the calls of marked functions as blocks, or as it is if its forward makes none."""
    look = _look(workload, ())
    return _by_calls(workload, look.seen) if look.seen else workload


def running(workload: Workload) -> tuple[Workload, Note | None]:
    """Return the workload without blocks that are wholly frozen and never run, such as averaged copies and teachers.

    If other blocks train, one forward is run to find them. A block that trains stays, since chance may have left it
    out.
    """
    frozen = [name for name in workload.blocks if not trains(workload.block(name))]
    if not frozen or len(frozen) == len(workload.blocks):
        return workload, None
    paths = {call.path for call in _look(workload, tuple(frozen)).seen}
    idle = [name for name in frozen if name not in paths]
    if not idle:
        return workload, None
    text = f"not counted as blocks, as they are frozen and no forward runs them: {few(idle, MOST_NAMED)}"
    blocks = tuple(name for name in workload.blocks if name not in idle)
    return msgspec.structs.replace(workload, blocks=blocks), Note(code="GCP050", text=text)


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
    look = _look(workload, workload.blocks)
    paths = {call.path for call in look.seen}
    is_same = len(look.seen) == len(paths) or not paths.issuperset(workload.blocks)
    return workload if is_same else _by_calls(workload, look.seen)


class _Call(msgspec.Struct, frozen=True):
    """One call in an observed forward."""

    path: str  # the module's name, or the function's
    called: Any
    past_hooks: bool = False


def _look(workload: Workload, blocks: tuple[str, ...]) -> _Look:
    """Run one forward, which leaves everything as it was; return the calls in it."""
    try:
        return _looked(workload, blocks, keeps=False)
    except (NotKept, Refused):
        return _looked(workload, blocks, keeps=True)


def _looked(workload: Workload, blocks: tuple[str, ...], *, keeps: bool) -> _Look:
    look = _Look(listens=not blocks)
    modules = [(name, workload.module.get_submodule(name)) for name in blocks]
    for name, module in modules:
        route(module, _LookedAt(look, name))
    try:
        with listened(look):
            run_forward(workload, keeps=keeps)
    finally:
        for _, module in modules:
            unroute(module)
    return look


class _Look:
    """Records the calls of a forward, in order; of the marked functions that a call runs, none."""

    def __init__(self, *, listens: bool) -> None:
        self.seen: list[_Call] = []
        self._listens = listens

    def call_function(self, name: str, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        if not self._listens:
            return function(*arguments, **keywords)
        self.seen.append(_Call(name, function))
        with listened(None):
            return function(*arguments, **keywords)


class _LookedAt(Route):
    """The route of a block whose calls are counted."""

    def __init__(self, look: _Look, path: str) -> None:
        self._look, self._path = look, path

    def called(self, block: nn.Module, own: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        self._look.seen.append(_Call(self._path, block, past_hooks=own is not block))
        return self.run(own, arguments, keywords)


def _by_calls(workload: Workload, seen: list[_Call]) -> Workload:
    """Return the workload with these calls as its blocks; a module that is called once keeps its own name."""
    counts, numbers = Counter(call.path for call in seen), Counter[str]()
    names, called = [], dict[str, CalledBlock]()
    for call in seen:
        numbers[call.path] += 1
        is_module = isinstance(call.called, nn.Module)
        name = call.path if is_module and counts[call.path] == 1 else f"{call.path}{SIGN}{numbers[call.path]}"
        names.append(name)
        if name != call.path:
            called[name] = CalledBlock(name, call.path, call.called, past_hooks=call.past_hooks)
    calls = Calls(tuple(called.values()))
    for block in called.values():
        if isinstance(block.called, nn.Module):
            route(block.called, ToCalls(calls, block.path))
    loss = workload.loss

    def followed(module: nn.Module, batch: Any) -> Any:
        with calls.forward():
            return loss(module, batch)

    return msgspec.structs.replace(workload, blocks=tuple(names), calls=dict(called), loss=followed)


def follow_forwards(workload: Workload) -> None:
    """Hook the module to know where its forward begins and ends, for training loops outside of gcprof."""
    calls = next((block.calls for block in workload.calls.values() if isinstance(block, CalledBlock)), None)
    if calls is not None:
        workload.module.register_forward_pre_hook(calls.begin, prepend=True)
        workload.module.register_forward_hook(calls.end, always_call=True)


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
        with listened(None):
            return called.__dict__["_route"].run(called.forward if self.past_hooks else called, arguments, keywords)

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


class ToCalls(Route):
    """The route of a module that is called several times."""

    def __init__(self, calls: Calls, path: str) -> None:
        self._calls, self._path = calls, path

    def called(self, block: nn.Module, own: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        if self._calls.is_open:
            return self._calls.next(self._path)(*arguments, **keywords)
        return self.run(own, arguments, keywords)
