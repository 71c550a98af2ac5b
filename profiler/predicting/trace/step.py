"""Traces one training step under fake tensors: a workload in, a Trace out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import pairwise

import torch

from profiler.core.own_thread import replaced
from profiler.core.trace_data import Allocation, Operator, Trace, recompute_ends
from profiler.predicting.trace import matmul_workspaces
from profiler.predicting.trace.saved_tensors import SavedTensors
from profiler.predicting.trace.tracer import Hidden, StorageLife, Tracer
from profiler.training.optimizers.torch_optim import own_tensors, state_by_parameter, wrapped
from profiler.training.workload import Step, Workload, tensors

TRIES = 3


def follow(
    workload: Workload,
    optimizer: torch.optim.Optimizer,
    step: Step,
    *,
    device: str = "cpu",
    hidden: Hidden | None = None,
    workspace_bytes: int = 0,
    with_saves: bool = False,
    with_calls: bool = False,
) -> Trace:
    """Trace a training step in its steady state, with gradients and optimizer state already allocated.

    `step` runs one training step and marks its phases. Tensors must be fake. Instead of a first step, the optimizer
    steps on zero gradients, unless it refuses them; if the traced step shows that this state was wrong (a parameter
    without a gradient, something that the model keeps from its first forward), it is traced again. `with_saves` also
    records what autograd saves and what modules take and return, from which stages are cut; `with_calls` records only
    the latter. `workspace_bytes` are those of cuBLAS's workspace.
    """

    def make() -> _FollowedStep:
        tracer = Tracer(workload.module, device=device, hidden=hidden)
        return _FollowedStep(workload, optimizer, tracer, with_saves=with_saves, with_calls=with_calls)

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
    return matmul_workspaces.with_workspaces(followed.trace(), workspace_bytes)


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


class _FollowedStep:
    """Traces one step."""

    def __init__(
        self,
        workload: Workload,
        optimizer: torch.optim.Optimizer,
        tracer: Tracer,
        *,
        with_saves: bool,
        with_calls: bool,
    ) -> None:
        self.arrived: set[int] = set()
        self._workload, self._optimizer, self._tracer, self._device = workload, optimizer, tracer, tracer.device
        self._saving = SavedTensors(self._tracer) if with_saves or with_calls else None
        self._calls_only = not with_saves
        self._marks: list[tuple[str, int]] = []
        self._hold()

    def go(self, step: Step) -> None:
        """Run the step, recording its modules, operators and gradients, and what autograd saves."""
        parameters = [parameter for parameter in self._workload.module.parameters() if parameter.requires_grad]
        handles = [parameter.register_post_accumulate_grad_hook(self._arrive) for parameter in parameters]
        saving = self._saving.follow(calls_only=self._calls_only) if self._saving else nullcontext()
        tracing = self._tracer.modules(), self._random_state(), saving
        with ExitStack() as stack:
            for context in (*tracing, self._tracer):
                stack.enter_context(context)
            self._loss = step(self._mark)
        if self._saving:
            self._saving.close()
        for handle in handles:
            handle.remove()

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
                )
                for life in self._tracer.lives
            ),
            operators=tuple(self._tracer.operators),
            marks=tuple(self._marks),
            device=self._device,
            uses_host=self._tracer.uses_host,
            saves=self._saving.saves() if self._saving else (),
            calls=self._saving.calls() if self._saving else (),
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

    def _keep_state(self, kept: Iterable[torch.Tensor], module: str) -> None:
        for tensor in kept:
            if tensor.ndim or self._device == "cpu":  # numbers, such as Adam's count of steps, are on the host
                self._keep(tensor, "optimizer", module)

    def _keep(self, tensor: torch.Tensor, category: str, module: str) -> None:
        life = self._tracer.hold(tensor, "", module)
        if life:
            life.category = category

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
