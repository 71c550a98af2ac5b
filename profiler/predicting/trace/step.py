"""Traces one training step, and the building of its model, under fake tensors: a workload in, a Trace out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import pairwise

import torch
from torch import nn

from profiler.core.own_thread import replaced
from profiler.core.trace_data import Allocation, Building, Operator, Trace, recompute_ends
from profiler.predicting.trace import matmul_workspaces
from profiler.predicting.trace.host_state import is_on_host
from profiler.predicting.trace.saved_tensors import SavedTensors
from profiler.predicting.trace.step_growth import StepGrowth
from profiler.predicting.trace.tracer import Hidden, StorageLife, Tracer
from profiler.predicting.trace.user_hooks import refuse_cycles
from profiler.training.optimizers.wrapped import own_tensors, state_by_parameter, wrapped
from profiler.training.workload import Step, Workload, tensors

TRIES = 3


def follow(  # noqa: PLR0913
    workload: Workload,
    optimizer: torch.optim.Optimizer,
    step: Step,
    *,
    device: str = "cpu",
    hidden: Hidden | None = None,
    kept_bytes: int = 0,
    with_saves: bool = False,
    with_calls: bool = False,
    with_growth: bool = False,
    batch_size: int | None = None,
    builder: Builder | None = None,
) -> Trace:
    """Trace a training step in its steady state, with gradients and optimizer state already allocated.

    `step` runs one training step and marks its phases. Tensors must be fake. Instead of a first step, the optimizer
    steps on zero gradients, unless it refuses them; if the traced step shows that this state was wrong (a parameter
    without a gradient, something that the model keeps from its first forward), it is traced again. `with_saves` also
    records what autograd saves and what modules take and return, from which `compose` derives other traces;
    `with_calls` records only the latter. `with_growth` records what grows with the batch, whose size is inferred if no
    tensor of it has `batch_size`. With a `builder`, the trace includes what was allocated while the workload was built
    under it. `kept_bytes` is the workspace that each thread that multiplies matrices keeps. Bytes.
    """
    make = partial(
        _FollowedStep,
        workload,
        optimizer,
        device,
        hidden,
        builder,
        with_saves=with_saves,
        with_calls=with_calls,
        growth=partial(StepGrowth, batch_size=batch_size, hidden=hidden) if with_growth else None,
    )
    used = kept = {id(parameter) for parameter in workload.module.parameters() if parameter.requires_grad}
    for _ in range(TRIES):
        try:
            _settle(workload, optimizer, used, kept)
        except RuntimeError:  # as SparseAdam, which takes no dense ones: a first step raises why, or makes its own
            workload.module.zero_grad()
            make().go(step)
        num_states = len(state_by_parameter(optimizer))
        followed = make()
        followed.go(step)
        is_settled = num_states == len(state_by_parameter(optimizer)) and not followed.num_left()
        if is_settled and (followed.arrived, followed.kept()) == (used, kept):
            break
        used, kept = followed.arrived, followed.kept()
    with followed.collecting():
        gc.collect() if followed.num_left() else None
    refuse_cycles(followed.cycle_bytes)
    return matmul_workspaces.with_workspaces(followed.trace(), kept_bytes)


def _settle(workload: Workload, optimizer: torch.optim.Optimizer, used: set[int], kept: set[int]) -> None:
    """Create the gradients and optimizer state of a first step; `used` parameters get a gradient, `kept` keep it."""
    for parameter in workload.module.parameters():
        has_one = id(parameter) in used
        if not has_one:
            for part in wrapped(optimizer):
                part.state.pop(parameter, None)
        parameter.grad = torch.zeros_like(parameter) if has_one else None
    optimizer.step()
    for parameter in workload.module.parameters():
        if id(parameter) not in kept:  # a hook has dropped it
            parameter.grad = None


class Builder:
    """Tracks the storages of all that runs under it: parameters, the batch, forwards that only observe.

    The first step begins with the allocator as they leave it, with free blocks and blocks in use.
    """

    def __init__(self, *, device: str, hidden: Hidden | None = None) -> None:
        self._tracer = Tracer(nn.Module(), device=device, hidden=hidden)
        self._left: list[StorageLife] = []

    @contextmanager
    def follow(self) -> Iterator[None]:
        """Track what runs within."""
        with self._tracer:
            yield
        self._left = [life for life in self._tracer.lives if life.died is None]

    def unheld(self, held: Sequence[StorageLife | None]) -> list[torch.UntypedStorage]:
        """Return the live storages that are not in `held`: those that only the loss or the module holds."""
        storages = [life.watch() for life in self._left if life not in held and life.died is None and life.watch]
        return [storage for storage in storages if storage is not None]

    def life(self, tensor: torch.Tensor) -> StorageLife | None:
        """Return the lifetime of a tensor's storage; None if it was not made under this builder."""
        return self._tracer.life(tensor)

    def building(self, lives: Sequence[StorageLife | None]) -> Building:
        """Return what was tracked. `lives` has, for each storage that is live before the step, its lifetime here."""
        left, last = set(self._left), len(self._tracer.operators)
        places = {life: place for place, life in enumerate(lives) if life in left}
        return Building(
            allocations=tuple(
                Allocation(life.nbytes, life.born, last if life in left else life.died or 0, life.operator, "", "", "")
                for life in self._tracer.lives
            ),
            operators=tuple(self._tracer.operators),
            places=tuple(places.get(life) for life in self._tracer.lives),
        )


class _FollowedStep:
    """Traces one step."""

    def __init__(
        self,
        workload: Workload,
        optimizer: torch.optim.Optimizer,
        device: str,
        hidden: Hidden | None,
        builder: Builder | None = None,
        *,
        with_saves: bool,
        with_calls: bool,
        growth: Callable[[Tracer, Sequence[torch.Tensor]], StepGrowth] | None,
    ) -> None:
        self._device = device
        self.arrived: set[int] = set()
        self.cycle_bytes = 0
        self._workload = workload
        self._optimizer = optimizer
        self._tracer = Tracer(workload.module, device=device, hidden=hidden)
        self._saving = SavedTensors(self._tracer) if with_saves or with_calls else None
        self._calls_only = not with_saves
        self._marks: list[tuple[str, int]] = []
        self._builder = builder
        self._built: list[StorageLife | None] = []  # by place in the trace: each storage's lifetime in the building
        self._hold()
        self._tracer.growth = growth(self._tracer, tensors(workload.batch)) if growth else None

    def go(self, step: Step) -> None:
        """Run the step, recording its modules, operators and gradients, and what autograd saves."""
        parameters = [parameter for parameter in self._workload.module.parameters() if parameter.requires_grad]
        handles = [parameter.register_post_accumulate_grad_hook(self._arrive) for parameter in parameters]
        saving = self._saving.follow(calls_only=self._calls_only) if self._saving else nullcontext()
        tracing = self.collecting(), self._tracer.modules(), self._random_state(), saving
        with ExitStack() as stack:
            for context in (*tracing, self._tracer):
                stack.enter_context(context)
            self._loss = step(self._mark)
        if self._saving:
            self._saving.close()
        for handle in handles:
            handle.remove()

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Count the bytes of the step that Python's collector frees within, as what only reference cycles hold."""
        before = 0

        def count(phase: str, details: object) -> None:
            nonlocal before
            self.cycle_bytes += self._tracer.gone_bytes - before if phase == "stop" else 0
            before = self._tracer.gone_bytes

        gc.callbacks.append(count)
        try:
            yield
        finally:
            gc.callbacks.remove(count)

    def kept(self) -> set[int]:
        """Return the ids of parameters whose gradient was computed in the step and still exists after it."""
        return {id(one) for one in self._workload.module.parameters() if one.grad is not None} & self.arrived

    def num_left(self) -> int:
        """Return how many storages of the forward outlive the step: the model keeps them, or `_settle` was wrong."""
        loss = self._tracer.life(self._loss)
        return sum(
            life.died is None and life.phase == "forward" and life.category is None and life is not loss
            for life in self._tracer.lives
        )

    def trace(self) -> Trace:
        """Return the step as data. Storages still live end with the last operator; those without a category get one."""
        last = len(self._tracer.operators)
        categories = _Categories(self._marks, self._tracer.operators)
        return Trace(
            allocations=tuple(
                Allocation(
                    life.nbytes,
                    life.born,
                    last if life.died is None else max(life.born - 1, life.died),
                    life.operator,
                    life.module,
                    life.phase,
                    life.category or categories.of(life),
                    last if self._saving and life.let_go is None else life.let_go,
                    batch_power=self._tracer.growth.power(life) if self._tracer.growth else 1,
                )
                for life in self._tracer.lives
            ),
            operators=tuple(self._tracer.operators),
            marks=tuple(self._marks),
            device=self._device,
            uses_host=self._tracer.uses_host,
            cycle_bytes=self.cycle_bytes,
            saves=self._saving.saves() if self._saving else (),
            calls=self._saving.calls() if self._saving else (),
            building=self._builder.building(self._built) if self._builder else None,
        )

    def _hold(self) -> None:
        """Track what is live before the step."""
        module, state = self._workload.module, state_by_parameter(self._optimizer)
        for name, parameter in module.named_parameters():
            owner = name.rpartition(".")[0]
            self._keep(parameter.detach(), "parameters", owner)
            if parameter.grad is not None:
                self._keep(parameter.grad, "gradients", owner)
            self._keep_state(tensors(state.get(parameter, [])), owner)
        self._keep_state(own_tensors(self._optimizer), "")
        for name, buffer in module.named_buffers():
            self._keep(buffer, "buffers", name.rpartition(".")[0])
        for tensor in tensors(self._workload.batch):
            self._keep(tensor, "inputs", "")
        unheld = self._builder.unheld(self._built) if self._builder else ()
        for storage in (one for one in unheld if one.device.type == "meta"):  # others have values: they are the host's
            life = self._keep(torch.empty(0, dtype=torch.uint8).set_(storage), "inputs", "")  # as in the loss's closure
            if life:
                life.grown = None

    def _keep_state(self, kept: Iterable[torch.Tensor], module: str) -> None:
        for tensor in kept:
            if not is_on_host(tensor):
                self._keep(tensor, "optimizer", module)

    def _keep(self, tensor: torch.Tensor, category: str, module: str) -> StorageLife | None:
        life = self._tracer.hold(tensor, "", module)
        if life:
            life.category = category
            self._built.append(self._builder.life(tensor) if self._builder else None)
        return life

    def _mark(self, phase: str) -> None:
        self._tracer.phase = phase
        self._marks.append((phase, len(self._tracer.operators)))

    def _arrive(self, parameter: torch.Tensor) -> None:
        self.arrived.add(id(parameter))
        life = self._tracer.life(parameter.grad) if parameter.grad is not None else None
        if life:
            life.category = "gradients"

    @contextmanager
    def _random_state(self) -> Iterator[None]:
        """Track the RNG state that every checkpoint on a CPU keeps, which no operator makes."""
        read = torch.get_rng_state

        def followed() -> torch.Tensor:
            state = read()
            self._tracer.hold(state, "random state", self._tracer.module)
            return state

        with replaced(torch, get_rng_state=followed) if self._device == "cpu" else nullcontext():
            yield


class _Categories:
    """Derives the category of a storage from its lifetime."""

    def __init__(self, marks: list[tuple[str, int]], operators: list[Operator]) -> None:
        pairs = pairwise(marks)
        self._forwards = [(before, last) for (phase, before), (_, last) in pairs if phase == "forward"]
        self._ends = recompute_ends(operators)

    def of(self, life: StorageLife) -> str:
        if life.phase == "forward":
            end = next(last for before, last in self._forwards if before <= life.born <= last)
            return "saved" if life.died is None or life.died > end else "temporaries"
        if life.phase == "recompute":
            return "recomputed" if life.died is None or life.died > self._ends[life.born] else "temporaries"
        return "temporaries"
