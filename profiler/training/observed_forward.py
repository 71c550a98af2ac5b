"""One observed forward: which blocks feed each other, what each saves, and whether they can run as one segment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import TensorWeakRef

from profiler.core.errors import NotOnce, Unsupported
from profiler.training import kept_state
from profiler.training.blocks import Route, own_class, route, unroute
from profiler.training.workload import Workload, tensors

NOT_ONCE = (
    "the blocks do not run once each in the order of their names; choose others with --blocks, or mark the function"
    " that the loop calls with gcprof.block"
)
METADATA = {  # functions of a tensor that do not use its contents
    "__get__", "__hash__", "__len__", "__repr__", "data_ptr", "dim", "element_size", "get_device", "is_complex",
    "is_contiguous", "is_floating_point", "ndimension", "nelement", "numel", "size", "storage_offset", "stride",
    "untyped_storage",
}  # fmt: skip
NO_HOOKS = "support saved tensor hooks"  # torch.func's message, as in a forward that calls torch.func.grad


class ChainBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that a forward saves, by block, and after the chain (head and loss)."""

    saved: tuple[int, ...]
    inputs: tuple[int, ...]  # of each block: bytes that a checkpoint beginning there keeps
    tail: int = 0


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What one forward shows of the blocks, in order. Each storage counts for the block that saves it first."""

    chain: ChainBytes
    linked: tuple[bool, ...]  # whether a block's output is the next one's only new input, and is used nowhere else
    in_tuples: set[int]  # blocks that return a tuple of one element
    takes: dict[int, str]  # by block: the kind of its first argument, if that is no tensor, in words
    given: dict[int, Given] = {}  # by call: other arguments, if they are not those of the block before


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of a block besides the activation: each is AS_BEFORE, or a value that exists before the forward."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    def after(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments and keywords of the block, given those of the block before."""
        pairs = zip(arguments, self.arguments, strict=True)
        return (
            tuple(before if value is AS_BEFORE else value for before, value in pairs),
            {name: keywords[name] if value is AS_BEFORE else value for name, value in self.keywords.items()},
        )

    def agrees(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
        """Whether a call takes the same values as in the observed forward."""
        if len(arguments) != len(self.arguments) or keywords.keys() != self.keywords.keys():
            return False
        pairs = zip(
            (*self.arguments, *self.keywords.values()), (*arguments, *map(keywords.get, self.keywords)), strict=True
        )
        return all(value is AS_BEFORE or _same(value, now) for value, now in pairs)


class AS_BEFORE:  # a class, since deep copies leave it as it is
    """Marks a value that is the one the block before was given."""


T = TypeVar("T")
Seen = dict[tuple[str, ...], Observation]  # by the names of the blocks
_SEEN: ContextVar[Seen | None] = ContextVar("_SEEN", default=None)


@contextmanager
def remembering(seen: Seen) -> Iterator[None]:
    """Reuse observations inside the context, for models that are built alike, unless calls take values of the model.

    Those that are remembered already are added to `seen`.
    """
    seen.update(_SEEN.get() or {})
    token = _SEEN.set(seen)
    try:
        yield
    finally:
        _SEEN.reset(token)


def observe_for_all(workload: Workload) -> None:
    """Observe a forward, and remember it for the rest of this process and its forks."""
    _SEEN.set({})
    observe(workload)


def observe(workload: Workload) -> Observation:
    """Run one forward, which keeps nothing for a backward unless the model differentiates within it.

    Leaves buffers, plain Python state, gradients and random state as they were. Parameters, buffers and the batch do
    not count as saved. A remembered observation is returned without a forward. Raises Unsupported if a block does not
    run exactly once, or not in the order of the names.
    """
    seen = _SEEN.get()
    if seen is not None and workload.blocks in seen:
        return seen[workload.blocks]
    observation = looked(partial(_observe, workload))
    if seen is not None and not observation.given:
        seen[workload.blocks] = observation
    return observation


def _observe(workload: Workload, *, keeps: bool) -> Observation:
    watcher = _Watcher(workload)
    with ExitStack() as watching:
        for index, name in enumerate(workload.blocks):
            block = workload.block(name)
            route(block, _Watched(watcher, index))
            watching.callback(unroute, block)
        handle = workload.module.register_forward_hook(lambda module, given, output: watcher.use(*tensors(output)))
        watching.callback(handle.remove)
        watching.enter_context(TensorUses(watcher.use))
        run_forward(workload, keeps=keeps, saved=watcher.saved.add)
    return watcher.observation()


class _Saved:
    """Counts saved bytes, by the block that is running.

    The saved-tensor hooks reference nothing else. Every node of the graph holds these hooks in C++, where Python's
    garbage collector does not see them: a hook that referenced an output, and so the graph, would leak both, with every
    parameter and gradient below them.
    """

    def __init__(self, resident: list[torch.Tensor], count: int) -> None:
        self.at: int | None = None  # None before the first block: what is saved there cannot be checkpointed
        self.nbytes = [0] * (count + 1)
        self._seen = {tensor.untyped_storage()._cdata: StorageWeakRef(tensor.untyped_storage()) for tensor in resident}

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        seen = self._seen.get(storage._cdata)
        if self.at is not None and (seen is None or seen.expired()):
            self.nbytes[self.at] += storage.nbytes()
        self._seen[storage._cdata] = StorageWeakRef(storage)


class _Watcher:
    """Tracks which block is running, hooks included, and what becomes of its output."""

    def __init__(self, workload: Workload) -> None:
        module, count = workload.module, len(workload.blocks)
        self._workload = workload
        self._inputs = [0] * count
        self._calls: list[int] = []
        self._linked = [False] * count
        self._tapped: set[int] = set()  # blocks whose output is used outside of the next one
        self._outputs: dict[int, tuple[TensorWeakRef, int]] = {}  # by id: an output and its block
        self._working: int | None = None  # the block whose forward runs
        self._in_tuples: set[int] = set()
        self._takes: dict[int, str] = {}
        self._given: dict[int, Given] = {}
        self._last: tuple[Any, int, tuple[Any, ...], dict[str, Any]] | None = None  # output, version, other arguments
        on_host = all(parameter.device.type == "cpu" for parameter in module.parameters())
        self._random_state = torch.get_rng_state().nbytes if on_host else 0  # bytes that every checkpoint also keeps
        resident = [*module.parameters(), *module.buffers()]
        self.saved = _Saved([*resident, *tensors(workload.batch)], count)
        self._lasting = {id(value) for value in (*resident, *module.modules())}

    def use(self, *used: torch.Tensor) -> None:
        """Note the use of tensors; a block's output may be used only by the next block."""
        for tensor in used:
            reference, index = self._outputs.get(id(tensor), (None, 0))
            if reference is not None and reference() is tensor and self._working != index + 1:
                self._tapped.add(index)

    def observation(self) -> Observation:
        """Return what the forward showed. Raises NotOnce if the blocks did not run once each, in order."""
        count, nbytes = len(self._workload.blocks), self.saved.nbytes
        if self._calls != [*range(count)]:
            raise NotOnce(NOT_ONCE)
        return Observation(
            chain=ChainBytes(saved=tuple(nbytes[:count]), inputs=tuple(self._inputs), tail=nbytes[count]),
            linked=tuple(fed and index not in self._tapped for index, fed in enumerate(self._linked)),
            in_tuples=self._in_tuples,
            given=self._given,
            takes=self._takes,
        )

    def enter(self, index: int, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Note what a block is given."""
        self.saved.at = self._working = index
        self._calls.append(index)
        given = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors(arguments)}
        self._inputs[index] = sum(given.values()) + self._random_state
        if arguments and not isinstance(arguments[0], torch.Tensor):
            name = type(arguments[0]).__name__
            self._takes[index] = f"a dataclass ({name})" if dataclasses.is_dataclass(arguments[0]) else f"a {name}"
        if index and self._last and arguments:
            self._linked[index - 1] = self._follows(index, self._last, arguments, keywords)
        self._last = None

    def _follows(self, index: int, last: Any, given: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
        """Whether a block is given the output of the one before, and else what that was given or was there before."""
        (output, version, further, named), (value, *arguments) = last, given
        if value is not output or output._version != version:
            return False
        if _same(arguments, further) and _same(keywords, named):
            return True
        is_call = self._workload.blocks[index] in self._workload.calls
        if not is_call or len(arguments) != len(further) or keywords.keys() != named.keys():
            return False
        changed = [AS_BEFORE if _same(now, then) else now for now, then in zip(arguments, further, strict=True)]
        by_name = {key: AS_BEFORE if _same(now, named[key]) else now for key, now in keywords.items()}
        self._given[index] = Given(arguments=tuple(changed), keywords=by_name)
        plain = (bool, int, float, str, type(None))
        return all(
            value is AS_BEFORE or isinstance(value, plain) or id(value) in self._lasting
            for value in pytree.tree_leaves((changed, by_name))
        )

    def leave(self, index: int, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        """Note what a block returns."""
        self.saved.at = index + 1 if index + 1 == len(self._workload.blocks) else index
        self._working = None
        if isinstance(output, tuple) and len(output) == 1:
            self._in_tuples.add(index)
            output = output[0]
        is_one = isinstance(output, torch.Tensor)
        self._last = (output, output._version, arguments[1:], keywords) if is_one else None
        self._outputs |= {id(tensor): (TensorWeakRef(tensor), index) for tensor in tensors(output)}


class _Watched(Route):
    """The route of a block that is watched."""

    def __init__(self, watcher: _Watcher, index: int) -> None:
        self._watcher, self._index = watcher, index

    def called(self, block: nn.Module, own: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        if own is not block:
            return own(*arguments, **keywords)
        self._watcher.enter(self._index, arguments, keywords)
        output = self.run(block, arguments, keywords)
        self._watcher.leave(self._index, arguments, keywords, output)
        return output


def _same(first: Any, second: Any) -> bool:
    """Whether two values are the same: one object, equal plain values, or containers of such."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_same(first[key], second[key]) for key in first)
    if isinstance(first, (tuple, list)) and isinstance(second, (tuple, list)):
        return len(first) == len(second) and all(_same(a, b) for a, b in zip(first, second, strict=True))
    return first is second or (isinstance(first, (bool, int, float, str)) and first == second)


class NotKept(Exception):
    """A backward within the forward needs a saved tensor that was not kept."""


class Refused(Unsupported):
    """The forward allows no hooks on what autograd saves."""


def looked(look: Callable[..., T]) -> T:
    """Return what `look` returns, which runs a forward; with `keeps` only where the forward needs what it saves."""
    try:
        return look(keeps=False)
    except (NotKept, Refused):
        return look(keeps=True)


def run_forward(workload: Workload, *, keeps: bool, saved: Callable[[torch.Tensor], None] | None = None) -> None:
    """Run one forward and leave everything as it was; `saved` is called with each tensor that autograd would save.

    Raises NotKept if the forward differentiates and nothing is kept, and Refused if it allows no hooks, which only a
    forward that `keeps` all and calls no `saved` does without.
    """

    def pack(tensor: torch.Tensor) -> torch.Tensor | None:
        if saved is not None:
            saved(tensor)  # every node of the graph keeps this hook: see _Saved
        return tensor.detach() if keeps else None

    def unpack(kept: torch.Tensor | None) -> torch.Tensor:
        if kept is None:
            raise NotKept
        return kept

    hooks = nullcontext() if keeps and saved is None else saved_tensors_hooks(pack, unpack)
    try:
        with kept_state.kept(workload.module), hooks:
            workload.loss(workload.module, workload.batch)
    except RuntimeError as error:
        if NO_HOOKS not in str(error):
            raise
        text = "its forward, which calls torch.func, allows no hooks on what autograd saves; `all` needs none"
        raise Refused(f"what the blocks save cannot be seen: {text}") from error


class TensorUses(TorchFunctionMode):
    """Function mode that calls `use` with every tensor that is used, in Python or by an operator."""

    def __init__(self, use: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self._use = use

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        result = function(*arguments, **(keywords or {}))
        if tensors(result) or function.__name__ not in METADATA:
            for tensor in tensors((arguments, keywords)):
                self._use(tensor)
        return result


def refuse_unlinked(workload: Workload, pairs: list[tuple[int, int]]) -> Observation | None:
    """Raise Unsupported if a block does not feed only the next one; return the forward that was observed, if any."""
    if workload.batch is None:  # no forward is needed where nested Sequentials alone run the pairs in a row
        run = _strung(workload.module, workload.blocks)
        behind = {*pairwise(run)}
        is_once = len({workload.module.get_submodule(name) for name in run}) == len(run)
        if is_once and all((workload.blocks[a], workload.blocks[b]) in behind for a, b in pairs):
            return None
    seen = observe(workload)
    for feeding, fed in pairs:
        if fed != feeding + 1 or not seen.linked[feeding]:
            names = f"'{workload.blocks[feeding]}' and '{workload.blocks[fed]}'"
            reason = "the second takes more than the first's output, or that output is also used elsewhere"
            if fed in seen.takes:
                reason = f"the second takes {seen.takes[fed]}, but blocks of one segment can only pass on tensors"
            raise Unsupported(f"{names} cannot be run together: {reason}")
    return seen


def _strung(module: nn.Module, blocks: tuple[str, ...], name: str = "") -> list[str]:
    """Return the names of what nested Sequentials run, in order, down to the blocks."""
    if name in blocks or own_class(module).forward is not nn.Sequential.forward:
        return [name]
    children = [(f"{name}.{key}" if name else key, child) for key, child in module._modules.items() if child]
    return [path for key, child in children for path in _strung(child, blocks, key)]
