"""Records one step on a CUDA device: the allocator's history, and the profiler's tree of what ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from profiler.core.allocator_history import Block, Event, blocks_in_use, events
from profiler.core.own_thread import replaced
from profiler.training.optimizers.wrapped import own_tensors, state_by_parameter
from profiler.training.workload import Step, Workload, dense_parts, tensors

PHASE, MODULE = "gcprof phase: ", "gcprof module: "  # prefixes of the labels in a recording
MOST_EVENTS = 10_000_000
Held = dict[int, tuple[str, str]]  # by the address of a storage: its category, and the module that it belongs to


class Recording(NamedTuple):
    """One recorded step: the blocks in use before it, the allocator's events in order, and torch.profiler's tree."""

    before: tuple[Block, ...]
    events: tuple[Event, ...]
    tree: tuple[Any, ...]
    marks: tuple[tuple[str, int], ...]  # the phases in order, each with the number of events before it
    held_before: Held  # storages whose category is known, before the step
    held_after: Held  # and after it
    gradients: tuple[tuple[int, int, str], ...]  # as they arrived: address, number of events before, module
    workspaces: frozenset[int]  # addresses of cuBLAS's workspaces
    peak_bytes: int  # torch.cuda.max_memory_allocated


@contextmanager
def recording_lines() -> Iterator[None]:
    """Make the allocator remember, for each block that is in use, which line of Python asked for it."""
    torch.cuda.memory._record_memory_history(max_entries=1, context="alloc", stacks="python")
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def record(workload: Workload, optimizer: torch.optim.Optimizer, step: Step, *, with_modules: bool = True) -> Recording:
    """Run and record one step, whose gradients and optimizer state exist already, within `recording_lines`.

    `with_modules` runs Python at each module's call, which compiled code does not allow: it must be false there.
    """
    counter, labels = _Counter(), _modules(workload.module) if with_modules else nullcontext()
    arrivals = _Arrivals(workload.module, counter)
    held = _held(workload, optimizer)
    torch.cuda.reset_peak_memory_stats()
    before = _blocks_in_use()
    torch.cuda.memory._record_memory_history(
        max_entries=MOST_EVENTS, context="alloc", stacks="python", clear_history=True
    )
    counter.begin()
    marks: list[tuple[str, int]] = []

    def mark(phase: str) -> None:
        marks.append((phase, counter.num_events()))
        with record_function(PHASE + phase):
            pass

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True) as profiled, labels:
        step(mark)
    peak_bytes = torch.cuda.max_memory_allocated()
    history = _events()
    arrivals.remove()
    return Recording(
        before=before,
        events=history,
        tree=tuple(_results(profiled).experimental_event_tree()),
        marks=tuple(marks),
        held_before=held,
        held_after=_held(workload, optimizer),
        gradients=tuple(arrivals.gradients),
        workspaces=_workspaces(),
        peak_bytes=peak_bytes,
    )


def _results(profiled: profile) -> Any:  # kineto's results are not typed
    return profiled.profiler.kineto_results  # type: ignore[union-attr]


class _Counter:
    """Counts the events of the allocator, by its statistics."""

    def __init__(self) -> None:
        self._before = 0

    def begin(self) -> None:
        self._before = self._count()

    def num_events(self) -> int:
        return self._count() - self._before

    def _count(self) -> int:
        requests = torch.cuda.memory_stats_as_nested_dict()["allocation"]["all"]
        return int(requests["allocated"]) + int(requests["freed"])


class _Arrivals:
    """Notes the storage of each gradient when it arrives."""

    def __init__(self, module: nn.Module, counter: _Counter) -> None:
        self.gradients: list[tuple[int, int, str]] = []
        self._counter = counter
        self._owners = {id(one): name.rpartition(".")[0] for name, one in module.named_parameters()}
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._handles = [parameter.register_post_accumulate_grad_hook(self._arrived) for parameter in trained]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _arrived(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            at, owner = self._counter.num_events(), self._owners[id(parameter)]
            self.gradients += [(address, at, owner) for address in _addresses(parameter.grad)]


@contextmanager
def _modules(root: nn.Module) -> Iterator[None]:
    """Label what each module of the model runs with its full name."""
    names = {id(module): name for name, module in reversed(list(root.named_modules()))}
    call: Callable[..., Any] = nn.Module.__call__

    def called(module: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        name = names.get(id(module))
        with nullcontext() if name is None else record_function(MODULE + name):
            return call(module, *arguments, **keywords)

    with replaced(nn.Module, __call__=called):
        yield


def _held(workload: Workload, optimizer: torch.optim.Optimizer) -> Held:
    """Return the storages that live between two steps, by address."""
    held: Held = {}
    state = state_by_parameter(optimizer)
    owners = {name: name.rpartition(".")[0] for name, _ in workload.module.named_parameters()}
    for name, parameter in workload.module.named_parameters():
        _keep(held, parameter.detach(), "parameters", owners[name])
        if parameter.grad is not None:
            _keep(held, parameter.grad, "gradients", owners[name])
        for tensor in tensors(state.get(parameter, [])):
            _keep(held, tensor, "optimizer", owners[name])
    for tensor in own_tensors(optimizer):
        _keep(held, tensor, "optimizer", "")
    for name, buffer in workload.module.named_buffers():
        _keep(held, buffer, "buffers", name.rpartition(".")[0])
    for tensor in tensors(workload.batch):
        _keep(held, tensor, "inputs", "")
    return held


def _keep(held: Held, tensor: torch.Tensor, category: str, module: str) -> None:
    for address in _addresses(tensor):
        held.setdefault(address, (category, module))


def _addresses(tensor: torch.Tensor) -> list[int]:
    """Return the addresses of a tensor's storages on the device."""
    storages = [part.untyped_storage() for part in dense_parts(tensor) if part.is_cuda]
    return [storage.data_ptr() for storage in storages if storage.nbytes()]


def _blocks_in_use() -> tuple[Block, ...]:
    return blocks_in_use(torch.cuda.memory._snapshot()["segments"])


def _events() -> tuple[Event, ...]:
    (entries,) = (trace for trace in torch.cuda.memory._snapshot()["device_traces"] if trace)
    return events(entries)


def _workspaces() -> frozenset[int]:
    """Free the workspaces that cuBLAS keeps; return the addresses of the blocks that this has freed."""
    kept = {block.address for block in _blocks_in_use()}
    torch._C._cuda_clearCublasWorkspaces()
    return frozenset(kept - {block.address for block in _blocks_in_use()})
