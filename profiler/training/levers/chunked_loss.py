"""Lever `chunk-loss`: the model's head is put off; cross entropy computes its logits and gradients part by part."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Literal

import msgspec
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import flop_registry, register_flop_formula

from profiler.core.case import Case
from profiler.core.errors import Unsupported
from profiler.core.record import Applied, Note
from profiler.core.user_code import users_line
from profiler.training.kept_state import kept
from profiler.training.levers.loss_in_parts import Heads, Logits, by_parts, by_torch, whole
from profiler.training.workload import Workload

CASTS = ("float", "to", "type")
UNSEEN = (
    "F.linear_cross_entropy is one operator: its products are counted, what it reads and writes is not, so that its "
    "time is estimated too low; chunk-loss:by=parts has an estimate of all"
)


def apply(
    workload: Workload, case: Case, *, rows: int = 1024, by: Literal["auto", "parts", "torch"] = "auto"
) -> tuple[Workload, Applied]:
    """Computes the head and cross entropy in parts of so many rows, so that the logits are never there at once.

    The head is found in one forward: a Linear, or an F.linear with a parameter, whose output meets cross entropy.
    `torch` uses F.linear_cross_entropy, and `parts` autograd; both keep the head's gradient from the forward on, and no
    logits. `auto` is `parts`: torch's own subtracts two sums, so that small gradients are rounded by more. Raises
    Unsupported where no head is found, and where the logits are read besides, with the reader's line.
    """
    if case.parallel:
        raise Unsupported("chunk-loss finds the head of a model that is whole, not one that ranks share")
    heads = FoundHeads(rows, by)
    found = heads.found(workload.module, partial(heads.around(workload.loss), workload.module, workload.batch))
    heads.choose(workload.module, found)
    text = f"the loss of {', '.join(name.removesuffix('.weight') for name in found)} in parts"
    notes = (Note(code="GCP071", text=UNSEEN),) if by == "torch" and case.has_estimated_times else ()
    applied = Applied(split=text, rounds=True, notes=notes, switch=heads.switch, heads=heads.places(workload.module))
    return msgspec.structs.replace(workload, loss=heads.around(workload.loss)), applied


class FoundHeads(Heads):
    """Finds heads, and has those put off. Raises Unsupported where torch has no function `by` which."""

    def __init__(self, rows: int, by: str) -> None:
        if by == "torch" and not hasattr(F, "linear_cross_entropy"):
            raise Unsupported("this torch has no F.linear_cross_entropy: chunk-loss:by=parts needs none")
        super().__init__(partial(_by_torch if by == "torch" else by_parts, rows=rows), WatchedLogits)
        self.is_on = True
        self.readers: dict[str, str] = {}  # by weight: what else read the logits, and where
        self.called: set[nn.Module] = set()  # Linears, in the forward that looks for heads
        self.asked = ""  # the function that was called last

    def switch(self, on: bool) -> None:
        self.is_on = on

    def around(self, loss: Callable[[nn.Module, Any], torch.Tensor]) -> Callable[[nn.Module, Any], torch.Tensor]:
        def chunked(module: nn.Module, batch: Any) -> torch.Tensor:
            if not self.is_on:
                return loss(module, batch)
            with self:
                made = loss(module, batch)
            self.asked = "the loss itself"
            return whole(made)  # type: ignore[no-any-return]

        return chunked

    def choose(self, module: nn.Module, names: Collection[str]) -> None:
        """Put off, from now on, every F.linear with a weight of one of these names."""
        self.weights = {id(weight): name for name, weight in module.named_parameters() if name in names}

    def found(self, module: nn.Module, forward: Callable[[], Any], *, within: str = "") -> list[str]:
        """Run one forward with every F.linear put off; return the weights whose output meets cross entropy alone.

        Raises Unsupported if none does `within` what was called.
        """
        self.choose(module, {name for name, weight in module.named_parameters() if weight.ndim == 2})
        linears = [part for part in module.modules() if isinstance(part, nn.Linear)]
        handles = [linear.register_forward_pre_hook(lambda linear, _: self.called.add(linear)) for linear in linears]
        with torch.no_grad(), kept(module):
            forward()
        for handle in handles:
            handle.remove()
        if torch.cuda.is_initialized():  # what this forward left in the allocator would lower what a step reserves
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()
        also_read = {name: self.readers[name] for name in self.chunked if name in self.readers}
        if also_read and len(also_read) == len(self.chunked):
            told = (f"the logits of {name} are also read: {why}" for name, why in also_read.items())
            raise Unsupported("; ".join(told))
        if not self.chunked:
            raise Unsupported(f"no head was found: no Linear whose output only meets cross entropy{within}")
        return sorted(self.chunked - also_read.keys())

    def places(self, module: nn.Module) -> dict[str, str]:
        """Return by weight within the calls of which module it is put off: of its Linear, or of all."""
        linears = {id(part.weight): name for name, part in module.named_modules() if part in self.called}
        return {
            f"{linears[key]}.weight".lstrip(".") if key in linears else name: linears.get(key, "")
            for key, name in self.weights.items()
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.asked = getattr(func, "__name__", str(func))
        return super().__torch_function__(func, types, args, kwargs)


class WatchedLogits(Logits):
    """Logits of which is kept what reads them."""

    def whole(self: Any) -> torch.Tensor:
        if self.computed is None:
            line = users_line(sys._getframe()) or "a place unknown"
            self.heads.readers.setdefault(self.weight_name, f"by {self.heads.asked} at {line}")
        return super().whole()


def _by_torch(logits: Any, hidden: torch.Tensor, target: torch.Tensor, **how: Any) -> torch.Tensor:
    """Return torch's own; raises Unsupported for what it does not take."""
    if how["label_smoothing"] or any(func.__name__ not in CASTS for func, _, _ in logits.pointwise):
        raise Unsupported("F.linear_cross_entropy has no softcap and no label smoothing: chunk-loss:by=parts")
    loss = by_torch(logits, hidden, target, **how)
    operator = torch.ops.torch_nn._linear_cross_entropy_batch_chunked  # is registered by the call
    if operator not in flop_registry:
        register_flop_formula(operator)(_flops)
    return loss


def _flops(hidden: Any, weight: Any, *rest: Any, **more: Any) -> int:
    """Return the FLOPs of the logits and of both gradients, all in the forward, for which PyTorch has no formula."""
    return 3 * 2 * int(hidden[0] * hidden[1] * weight[0])
