"""Traces one training step under fake tensors: a workload in, a Trace out, with cuBLAS's workspaces."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from msgspec.structs import replace

from profiler.core.own_thread import replaced
from profiler.core.trace_data import WORKSPACES, Allocation, Operator, Trace
from profiler.predicting.step_tracer import Categories, between_steps
from profiler.predicting.trace.tracer import Hidden, Tracer
from profiler.training.optimizers import state_by_parameter, wrapped
from profiler.training.workload import Step, Workload, tensors

TRIES = 3
PRODUCTS = ("mm", "bmm", "mv", "dot", "addmm", "addmm_", "_addmm_activation", "addmv", "baddbmm", "baddbmm_", "addbmm")
NAMES = tuple(f"aten.{product}" for product in PRODUCTS)
BIASED = ("aten.addmm", "aten._addmm_activation")  # run by cuBLASLt, whose own workspace is smaller
LT_WORKSPACE = 2**20  # bytes: cuBLASLt's default on every device


def follow(
    workload: Workload,
    optimizer: torch.optim.Optimizer,
    step: Step,
    *,
    device: str = "cpu",
    hidden: Hidden | None = None,
    workspace_bytes: int = 0,
    with_saves: bool = False,
) -> Trace:
    """Trace a training step in its steady state, with gradients and optimizer state already allocated.

    `step` runs one training step and marks its phases. Tensors must be fake. Instead of a first step, the optimizer
    steps on zero gradients, unless it refuses them; if the traced step shows that this state was wrong (a parameter
    without a gradient, something that the model keeps from its first forward), it is traced again. `with_saves` also
    records what autograd saves, from which stages are cut. `workspace_bytes` are those of cuBLAS's workspace.
    """

    def make() -> _FollowedStep:
        tracer = Tracer(workload.module, device=device, hidden=hidden, with_saves=with_saves)
        return _FollowedStep(workload, optimizer, tracer, with_saves=with_saves)

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
    return with_workspaces(followed.trace(), workspace_bytes)


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
        self, workload: Workload, optimizer: torch.optim.Optimizer, tracer: Tracer, *, with_saves: bool
    ) -> None:
        self._workload, self._tracer, self._with_saves = workload, tracer, with_saves
        for tree, category, owner in between_steps(workload, optimizer):
            for tensor in tensors(tree):
                # numbers of an optimizer, such as Adam's count of steps, are on the host
                is_here = category != "optimizer" or tensor.ndim or tracer.device == "cpu"
                if is_here and (life := tracer.hold(tensor, "", owner)):
                    life.category = category

    def go(self, step: Step) -> None:
        """Run the step, recording its modules, operators and gradients, and what autograd saves."""
        with self._tracer.hooked(), self._random_state(), self._tracer:
            self._loss = step(self._tracer.mark)
        for gradient in self._tracer.arrived:
            for life in gradient.storages:
                life.category = "gradients"
        if self._with_saves:
            self._tracer.close()

    @property
    def arrived(self) -> set[int]:
        """The ids of parameters whose gradient was computed in the step."""
        return {id(gradient.parameter) for gradient in self._tracer.arrived}

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
        tracer, last = self._tracer, len(self._tracer.operators)
        categories = Categories(tracer.marks, tracer.operators)
        return Trace(
            allocations=tuple(
                Allocation(
                    life.nbytes,
                    life.born,
                    last if life.died is None else max(life.born - 1, life.died),
                    life.operator,
                    life.module,
                    life.phase,
                    life.category or categories.of(life.phase, life.born, life.died),
                    last if self._with_saves and life.let_go is None else life.let_go,
                )
                for life in tracer.lives
            ),
            operators=tuple(tracer.operators),
            marks=tuple(tracer.marks),
            device=tracer.device,
            uses_host=tracer.uses_host,
            saves=tracer.saves(),
            calls=tracer.module_calls(),
        )

    @contextmanager
    def _random_state(self) -> Iterator[None]:
        """Track the RNG state that every checkpoint on a CPU keeps, which no operator makes."""
        read = torch.get_rng_state

        def followed() -> torch.Tensor:
            state = read()
            self._tracer.hold(state, "random state", self._tracer.module)
            return state

        with replaced(torch, get_rng_state=followed) if self._tracer.device == "cpu" else nullcontext():
            yield


def keeps_workspaces() -> bool:
    """Whether PyTorch keeps cuBLAS's workspaces between products: before 2.15, and if the environment asks for it.

    Source: aten/src/ATen/cuda/CublasHandlePool.cpp.
    """
    return torch.__version__ < "2.15" or os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"


def with_workspaces(trace: Trace, nbytes: int) -> Trace:
    """Return the step with workspaces of `nbytes`: kept, by the forward's thread and autograd's, or of each product."""
    if not nbytes:
        return trace
    if not keeps_workspaces():
        return replace(trace, operators=tuple(_with_workspace(operator, nbytes) for operator in trace.operators))
    phases = {operator.phase for operator in trace.operators if operator.name in NAMES}
    num_threads = bool(phases & {"forward", "optimizer"}) + bool(phases & {"backward", "recompute"})
    kept = Allocation(nbytes, 0, len(trace.operators), "cuBLAS", "", "before", WORKSPACES)
    return replace(trace, allocations=(*trace.allocations, *[kept] * num_threads))


def _with_workspace(operator: Operator, nbytes: int) -> Operator:
    taken = 0 if operator.name not in NAMES else LT_WORKSPACE if operator.name in BIASED else nbytes
    return replace(operator, hidden_bytes=taken) if taken > operator.hidden_bytes else operator


def taken_workspace(trace: Trace, nbytes: int) -> int:
    """Return the bytes of all kept workspaces in the step or, without any, `nbytes` if a product takes a workspace."""
    kept = sum(storage.nbytes for storage in trace.allocations if storage.category == WORKSPACES)
    taking = (operator for operator in trace.operators if operator.name in NAMES and operator.hidden_bytes >= nbytes)
    return kept or (nbytes if any(taking) else 0)
