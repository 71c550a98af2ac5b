"""The seconds of each stage on a device that is there, one stage at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils import _pytree as pytree

from profiler.core.case import Case, Choice
from profiler.measuring.devices import Device, open_device
from profiler.measuring.meters import time as step_timing
from profiler.training.assemble import assemble
from profiler.training.checkpointing.block_segments import checkpoint_without_reentry
from profiler.training.strategies.selective import saving
from profiler.training.workload import Workload, restored, tensors

ROUNDS = 5  # samples of every way to run a stage, in turns; one more comes first and is not counted
INSTANCES = 3  # stages of a kind that are timed
PLAIN, RECOMPUTED = "", " recomputed"  # beside the save options, whose names are theirs
SAMPLES = 3  # steps that are timed for what is outside of the blocks


def seconds(
    case: Case, runs: Sequence[Sequence[int]], saves: Sequence[str], *, in_calls: bool = False
) -> list[Seconds]:
    """Times each stage, and each single block under every save option, on the case's device.

    One forward is run without saving; where a run begins, it is timed by itself on what it is given there. Stages of
    the same modules, shapes and types are one kind. An empty run takes no time but for the last, which has all that a
    step with every block checkpointed takes besides the blocks.
    """
    device = open_device(case.device)
    workload = assemble(case, in_calls=in_calls).workload
    watch = _Watch(workload, device, [run for run in runs if run], saves)
    with restored(workload.module), torch.no_grad(), watch.hooked():
        workload.loss(workload.module, workload.batch)
    run_seconds = [watch.seconds(index) for index in range(len(watch.runs))]
    checkpointed = sum(watch.checkpointed(index) for index in range(len(watch.runs)))
    del workload, watch
    blocks = iter(run_seconds)
    every = [next(blocks) if run else NOTHING for run in runs]
    return [*every[:-1], _rest(case, device, checkpointed) if not runs[-1] else every[-1]]


def _rest(case: Case, device: Device, inside: float) -> Seconds:
    """Returns the time of embeddings, head, loss and optimizer together: a step less its checkpointed blocks."""
    every = msgspec.structs.replace(case, strategy=Choice("all"))
    _, step = assemble(every).trainer()
    samples = step_timing.read(device, step, warmup=1, samples=SAMPLES)["step_seconds"]
    return msgspec.structs.replace(NOTHING, forward=max(0.0, median(samples) - inside))


class _Watch:
    """Times a stage where its first block is called."""

    def __init__(self, workload: Workload, device: Device, runs: Sequence[Sequence[int]], saves: Sequence[str]) -> None:
        self._workload, self._device, self._saves = workload, device, saves
        self.runs = [[workload.block(workload.blocks[index]) for index in run] for run in runs]
        self._kinds: dict[int, Any] = {}
        self._samples: dict[Any, dict[str, list[tuple[float, float]]]] = {}
        self._counts: dict[Any, int] = {}
        self._is_timing = False
        self._given = {tensor.untyped_storage()._cdata for tensor in tensors(workload.batch)}

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Time each run where a forward enters its first module."""
        handles = [
            modules[0].register_forward_pre_hook(partial(self._enter, index), with_kwargs=True)
            for index, modules in enumerate(self.runs)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def seconds(self, index: int) -> Seconds:
        """Medians of a run; the early stop is what a checkpoint adds to the backward, from half a forward to one."""
        samples = self._samples[self._kinds[index]]
        forward, backward = _medians(samples[PLAIN])
        recompute = _medians(samples[RECOMPUTED])[1] - backward
        return Seconds(
            forward=forward,
            backward=backward,
            early_stop=min(max(recompute, 0.5 * forward), forward),
            options={save: _medians(samples[save]) for save in self._saves if save in samples},
        )

    def checkpointed(self, index: int) -> float:
        """Returns the seconds of forward and backward of one stage under a checkpoint."""
        return sum(_medians(self._samples[self._kinds[index]][RECOMPUTED]))

    def _enter(self, index: int, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if self._is_timing:
            return
        modules = self.runs[index]
        kind = self._kinds[index] = _kind(modules, (arguments, keywords))
        if self._counts.setdefault(kind, 0) < INSTANCES:
            self._counts[kind] += 1
            self._is_timing = True
            try:
                self._time(kind, modules, arguments, keywords)
            finally:
                self._is_timing = False

    def _time(
        self, kind: Any, modules: Sequence[nn.Module], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        run = partial(_through, modules)
        ways = {
            PLAIN: run,
            RECOMPUTED: partial(checkpoint_without_reentry, run),
            **{save: partial(saving(save), run) for save in self._saves if len(modules) == 1},
        }
        samples = self._samples.setdefault(kind, {way: [] for way in ways})
        with _keeping_inputs(modules[0]):
            for number in range(ROUNDS + 1):
                for way, function in ways.items():
                    sample = self._sample(function, arguments, keywords)
                    if number:
                        samples[way].append(sample)

    def _sample(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[float, float]:
        """Returns the seconds of one forward and one backward, which creates the gradients."""
        given, named = pytree.tree_map_only(torch.Tensor, self._fresh, (arguments, keywords))
        torch.clear_autocast_cache()  # what is in it was made by the last sample's graph
        with torch.enable_grad():
            self._device.synchronize()
            watch = self._device.stopwatch()
            watch.mark()
            out = [output for output in tensors(function(*given, **named)) if output.requires_grad]
            watch.mark()
            gradients = [torch.ones_like(output) for output in out]
            watch.mark()
            torch.autograd.backward(out, gradients)
            watch.mark()
        forward, _, backward = watch.seconds()
        for parameter in self._workload.module.parameters():
            parameter.grad = None
        return forward, backward

    def _fresh(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy that is no leaf, since blocks may write over it; what is of the batch needs no gradient."""
        is_given = tensor.untyped_storage()._cdata in self._given
        leaf = tensor.detach().requires_grad_(tensor.is_floating_point() and not is_given)
        with torch.enable_grad():
            return leaf.clone()


@contextmanager
def _keeping_inputs(module: nn.Module) -> Iterator[None]:
    """Keep a module that is computed again (ReLU) from writing over its input."""
    writes = getattr(module, "inplace", False)
    if writes:
        module.inplace = False  # type: ignore[assignment]
    try:
        yield
    finally:
        if writes:
            module.inplace = True  # type: ignore[assignment]


def _through(modules: Sequence[nn.Module], value: Any, *arguments: Any, **keywords: Any) -> Any:
    for module in modules:
        value = module(value, *arguments, **keywords)
        value = value[0] if isinstance(value, tuple) and len(value) == 1 else value
    return value


def _kind(modules: Sequence[nn.Module], given: Any) -> Any:
    """Returns a key that is equal for stages that take the same time."""
    return (
        tuple(type(part).__name__ for module in modules for part in module.modules()),
        tuple((tensor.shape, tensor.dtype) for module in modules for tensor in module.parameters()),
        tuple((tensor.shape, tensor.dtype) for tensor in tensors(given)),
    )


def _medians(samples: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return median(forward for forward, _ in samples), median(backward for _, backward in samples)


class Seconds(msgspec.Struct, frozen=True, kw_only=True):
    """The seconds of one stage."""

    forward: float
    backward: float
    early_stop: float  # of a recompute, which ends when all that is saved is there
    options: dict[str, tuple[float, float]]  # forward and backward under each save option


NOTHING = Seconds(forward=0.0, backward=0.0, early_stop=0.0, options={})
