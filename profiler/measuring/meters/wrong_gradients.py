"""Which gradients are wrong: two silent errors of plain PyTorch, and finite differences of the loss."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from profiler.core.own_thread import replaced
from profiler.measuring.meters import dense, widest
from profiler.measuring.meters.equality import Gradients
from profiler.training import kept_state
from profiler.training.assemble import Assembled
from profiler.training.workload import Workload, compared, loss_of, tensors

CACHED = (
    "autocast keeps the cast of a weight for its later uses, though it was made before the weight was written, or "
    "where gradients are off; torch.autocast(..., cache_enabled=False) casts it each time"
)
STEPS = {torch.float64: (1e-4, 1e-5), None: (1e-2, 3e-3)}  # of the weights' norm; in double, or in the model's types
NEAR = 0.1  # of the way from one gradient to the other: a slope so near to an end is that gradient's
SAME_LOSS = 2.0**-5  # relative: a loss in double that differs by more draws other numbers, or is of other work


class SilentErrors:
    """What may be wrong in a step without checkpointing that runs within `watching`."""

    def __init__(self) -> None:
        self.overwritten: dict[str, None] = {}  # Functions that kept a tensor on ctx that was then written over
        self.is_cast_unseen = False  # whether a weight may have been cast under autocast where gradients are off

    def cause(self) -> str | None:
        """Return in words what may be wrong; None if nothing was seen."""
        if self.overwritten:
            names = ", ".join(self.overwritten)
            text = "as an attribute of ctx that is written over before the backward"
            return f"{names} keeps a tensor {text}; ctx.save_for_backward would refuse it"
        return CACHED if self.is_cast_unseen else None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look for both ways in the step that runs in the block."""

        def kept(node: Any, name: str) -> None:
            self._see_grad_off()  # within its forward
            versions = [(weakref.ref(tensor), tensor._version) for tensor in _on_ctx(node)]

            def compare(gradients: object) -> None:
                if any((tensor := there()) is not None and tensor._version != version for there, version in versions):
                    self.overwritten[name] = None

            if versions:
                node.register_prehook(compare)

        enter = torch.no_grad.__enter__

        def entered(block: Any) -> None:
            self._see_grad_off()
            enter(block)

        with _functions(kept), replaced(torch.no_grad, __enter__=entered):
            yield

    def _see_grad_off(self) -> None:
        kinds = ("cpu", *(["cuda"] if torch.cuda.is_initialized() else []))
        if torch.is_autocast_cache_enabled() and any(map(torch.is_autocast_enabled, kinds)):
            self.is_cast_unseen = True


@contextmanager
def mended() -> Iterator[None]:
    """Run the step in the block so that nothing is written over on ctx, and without autocast's cache."""

    def copied(node: Any, name: str) -> None:
        for attribute, value in list(vars(node).items()):
            if isinstance(value, torch.Tensor) and any(value is tensor for tensor in _on_ctx(node)):
                setattr(node, attribute, value.detach().clone())

    enter = torch.autocast.__enter__

    def entered(block: Any) -> Any:
        result = enter(block)  # type: ignore[no-untyped-call]
        torch.set_autocast_cache_enabled(False)  # its exit restores it
        return result

    with ExitStack() as stack:
        stack.enter_context(_functions(copied))
        stack.enter_context(replaced(torch.autocast, __enter__=entered))
        yield


def _on_ctx(node: Any) -> list[torch.Tensor]:
    """Return the tensors that are attributes of a ctx, but for parameters, which only an optimizer writes."""
    held = tensors(dict(getattr(node, "__dict__", {})))
    return [tensor for tensor in held if not isinstance(tensor, torch.nn.Parameter) and not tensor.is_inference()]


@contextmanager
def _functions(look: Callable[[Any, str], None]) -> Iterator[None]:
    """Call `look` with the node and the name of each custom Function that is applied in the block."""
    apply = torch.autograd.Function.__dict__["apply"]

    def applied(cls: Any, *arguments: Any, **keywords: Any) -> Any:
        output = apply.__get__(None, cls)(*arguments, **keywords)
        nodes = (tensor.grad_fn for tensor in tensors(output))
        node = next((node for node in nodes if getattr(type(node), "_forward_cls", None) is cls), None)
        if node is not None and not cls.__module__.startswith("torch."):
            look(node, cls.__name__)
        return output

    with mock.patch.object(torch.autograd.Function, "apply", classmethod(applied)):
        yield


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
    with kept_state.kept(workload.module):
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
