"""Judges which of two gradients is the loss's, by central differences of the loss: without any backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from profiler.measuring.meters.step_results import Gradients
from profiler.measuring.meters.tensor_values import dense, widest
from profiler.training import plain_state
from profiler.training.assemble import Assembled
from profiler.training.workload import Workload, compared, loss_of, restored, tensors

STEPS = {torch.float64: (1e-4, 1e-5), None: (1e-2, 3e-3)}  # of the weights' norm; in double, or in the model's types
NEAR = 0.1  # of the way from one gradient to the other: a slope so near to an end is that gradient's
SAME_LOSS = 2.0**-5  # relative: a loss in double that differs by more draws other numbers, or is of other work


def side(built: Assembled, first: Gradients, second: Gradients) -> str | None:
    """Return "first" or "second", whose slope along their difference the loss has, or "neither"; None if unknown.

    `built` is a fresh workload without checkpointing; it is left as it was. The loss is computed in double precision if
    the model allows it, else as it is. It is unknown if steps of different lengths give different slopes.
    """
    pairs = {name: (gradient, second.get(name)) for name, gradient in first.items()}
    doubles = {
        name: (widest(dense(gradient)), widest(dense(other)))
        for name, (gradient, other) in pairs.items()
        if gradient is not None and other is not None
    }
    length = float(sum((gradient - other).abs().square().sum() for gradient, other in doubles.values()) ** 0.5)
    if not 0 < length < float("inf"):
        return None
    direction = {name: (gradient - other) / length for name, (gradient, other) in doubles.items()}
    slope = float(sum((doubles[name][0].conj() * direction[name]).sum().real for name in doubles))  # of the first
    for dtype, steps in STEPS.items():
        try:
            slopes = _slopes(built, direction, dtype, steps)
        except RuntimeError:  # the forward mixes the types of tensors, some of which are not the module's own
            if dtype is None:
                raise
            continue
        places = [(slope - found) / length for found in slopes]
        if places and max(places) - min(places) <= NEAR:
            return next((end for end, at in (("first", 0), ("second", 1)) if abs(places[-1] - at) <= NEAR), "neither")
    return None


def _slopes(
    built: Assembled, direction: dict[str, torch.Tensor], dtype: torch.dtype | None, steps: tuple[float, ...]
) -> list[float]:
    """Return the loss's slope in this direction for each length of step; none if it has another loss in this type."""
    plain = _loss(built)
    workload = built.workload
    with _in_type(workload, dtype):
        parameters = {name: compared(workload)[name] for name in direction}
        starts = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        norm = float(sum(start.abs().double().square().sum().cpu() for start in starts.values()) ** 0.5) or 1.0

        def loss_at(distance: float) -> float:
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(starts[name] + distance * direction[name].to(starts[name]))
            return _loss(built)

        try:
            if not abs(loss_at(0.0) - plain) <= SAME_LOSS * abs(plain):
                return []
            return [(loss_at(step * norm) - loss_at(-step * norm)) / (2 * step * norm) for step in steps]
        finally:
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(starts[name])


def _loss(built: Assembled) -> float:
    """Return the loss of the step, the mean of its micro-batches'; nothing else of the step stays."""
    workload, count = built.workload, built.case.accumulate
    with restored(workload.module), plain_state.kept(workload.module):
        built.seed(1)
        return sum(float(loss_of(workload).detach()) for _ in range(count)) / count


@contextmanager
def _in_type(workload: Workload, dtype: torch.dtype | None) -> Iterator[None]:
    """Give the model, its loss and the batch another floating-point type in the block; None changes nothing."""
    own = [
        tensor for part in (workload.module, *workload.loss_modules) for tensor in (*part.parameters(), *part.buffers())
    ]
    before = [(tensor, tensor.data) for tensor in (*own, *tensors(workload.batch)) if tensor.is_floating_point()]
    try:
        for tensor, data in before if dtype else ():
            tensor.data = data.to(dtype)
        yield
    finally:
        for tensor, data in before:
            tensor.data = data
