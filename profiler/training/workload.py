"""A model ready to train, its precision, its training step, and the bytes of its tensors."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import product
from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils import _pytree as pytree

from profiler.core.errors import Invalid
from profiler.core.own_thread import stop_if_interrupted

Mark = Callable[[str], None]  # called with the name of the phase that begins
Step = Callable[[Mark], Any]  # one training step

STEPPED = (
    "an optimizer steps in the backward, so that each of the micro-batches is a step of its own, by its share of the "
    "gradient: leave --accumulate out, or step after the last"
)
OF_LOSS, INPUT = "the loss's ", "input tensor "  # begin the names of leaves that are no parameters of the module
CAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
AMP = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}
GRANULE = {"cpu": 1, "cuda": 512}  # bytes: the CPU's allocator reports what was asked for, CUDA's rounds up


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A model ready to train, as a model's file builds it.

    `blocks` are names of submodules in the order in which the forward runs them; if there are none, they are searched
    for. `loss` runs the module's forward on the batch and returns a scalar. `optimizer`, if given, replaces the case's:
    an optimizer, or a function of the parameters.

    `syncing`, `held`, `gathered` and `settling` are set if several ranks train the model together. `syncing(is_last)`
    is the context of a micro-batch; only the last one's gradients are averaged over the ranks. `held` returns, by
    category, the bytes that stay between steps for communication. `gathered` returns the most bytes of all-gathered
    parameters that were live since its last call. After `settling` steps all memory that stays is allocated.
    """

    module: nn.Module
    blocks: tuple[str, ...] = ()
    batch: Any  # any nesting of tensors
    loss: Callable[[nn.Module, Any], torch.Tensor]
    optimizer: torch.optim.Optimizer | Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None
    data: str = "synthetic"
    syncing: Callable[[bool], AbstractContextManager[Any]] = nullcontext
    held: Callable[[], dict[str, int]] = dict
    gathered: Callable[[], int] | None = None
    settling: int = 1
    calls: dict[str, nn.Module] = {}  # blocks that are calls instead of submodules, by name
    loss_modules: tuple[nn.Module, ...] = ()  # that the loss itself is or refers to
    parts: tuple[tuple[Any, float], ...] = ()  # of the batch, each with its share of the loss; (): the batch is whole
    optimizer_changes: tuple[Callable[[torch.optim.Optimizer], torch.optim.Optimizer], ...] = ()  # by levers

    def block(self, name: str) -> nn.Module:
        """Return the block of this name."""
        return self.calls[name] if name in self.calls else self.module.get_submodule(name)


def trained(workload: Workload) -> dict[str, torch.Tensor]:
    """Return every parameter by name: the module's, and those that only the model's own optimizer knows."""
    parameters: dict[str, torch.Tensor] = dict(workload.module.named_parameters())
    if not isinstance(workload.optimizer, torch.optim.Optimizer):
        return parameters
    held = {id(parameter) for parameter in parameters.values()}
    for group, options in enumerate(workload.optimizer.param_groups):
        for place, parameter in enumerate(options["params"]):
            if id(parameter) not in held:
                parameters[f"optimizer.param_groups[{group}][{place}]"] = parameter
    return parameters


def compared(workload: Workload) -> dict[str, torch.Tensor]:
    """Return every leaf whose gradient is compared, by name: what is trained, the loss's own parameters, and inputs."""
    leaves = trained(workload)
    held = {id(leaf) for leaf in leaves.values()}
    parameters = [pair for module in workload.loss_modules for pair in module.named_parameters()]
    named = [
        *((f"{OF_LOSS}{name}", parameter) for name, parameter in parameters),
        *((f"{INPUT}{number}", tensor) for number, tensor in enumerate(tensors(workload.batch))),
    ]
    beside = {name: leaf for name, leaf in named if leaf.requires_grad and leaf.is_leaf}
    return leaves | {name: leaf for name, leaf in beside.items() if id(leaf) not in held}


def drop_gradients(workload: Workload) -> None:
    """Free all gradients that are compared, also those that no optimizer frees between steps."""
    for leaf in compared(workload).values():
        leaf.grad = None


def batch_statistics(
    module: nn.Module, *, of: Collection[str] = ("running_mean", "running_var", "num_batches_tracked")
) -> frozenset[str]:
    """Return the names of the running statistics of PyTorch's own norms, with their batch counts."""
    norms = [norm for norm in module.modules() if isinstance(norm, nn.modules.batchnorm._NormBase)]
    kept = {id(getattr(norm, name)) for norm in norms for name in of if getattr(norm, name) is not None}
    return frozenset(name for name, buffer in module.named_buffers() if id(buffer) in kept)


def train_step(
    workload: Workload,
    optimizer: torch.optim.Optimizer | None,
    mark: Mark = lambda phase: None,
    *,
    accumulate: int = 1,
    keep_gradients: bool = False,
    scaler: torch.amp.GradScaler | None = None,
    look: Callable[[torch.Tensor], None] = lambda loss: None,
) -> torch.Tensor:
    """Zero the gradients, then run forward, loss and backward for each micro-batch, then the optimizer's step.

    `mark` is called with the phase that begins: zero, forward, backward, optimizer, and end; `look` with each loss
    before its backward. Without an optimizer the step ends after the backward. Returns the last micro-batch's loss,
    detached; that of the workload's parts is their sum. Raises Invalid as `loss_of` does, and if a parameter is written
    in the backward of a micro-batch before the last, whose gradients are not all there yet.
    """
    stop_if_interrupted()
    mark("zero")
    for parameter in trained(workload).values():
        if keep_gradients and parameter.grad is not None:
            parameter.grad.zero_()
        else:
            parameter.grad = None
    parts = workload.parts or ((workload.batch, 1.0),)
    total: torch.Tensor | None = None
    for number, (place, (batch, share)) in product(range(1, accumulate + 1), enumerate(parts, start=1)):
        is_last = number == accumulate and place == len(parts)
        with workload.syncing(is_last):
            mark("forward")
            loss = loss_of(workload, batch)
            look(loss)
            mark("backward")
            part = loss / accumulate if accumulate > 1 else loss
            part = part * share if share != 1.0 else part
            versions = [] if is_last else _versions(workload)
            (scaler.scale(part) if scaler else part).backward()
            if versions and _versions(workload) != versions:
                raise Invalid(STEPPED)
        own = loss.detach() if share == 1.0 else loss.detach() * share
        total = own if total is None or place == 1 else total + own
    mark("optimizer")
    if optimizer is not None and scaler is not None:
        scaler.step(optimizer)
        scaler.update()
    elif optimizer is not None:
        optimizer.step()
    mark("end")
    assert total is not None
    return total


def _versions(workload: Workload) -> list[int]:
    parameters = map(local, trained(workload).values())
    return [parameter._version for parameter in parameters if not parameter.is_inference()]


def loss_of(workload: Workload, batch: Any = None) -> torch.Tensor:
    """Run the forward, on its batch or another; return its loss. Raises Invalid if that is no real scalar."""
    loss = workload.loss(workload.module, workload.batch if batch is None else batch)
    if not isinstance(loss, torch.Tensor):
        raise Invalid(f"the loss must be a tensor, got {type(loss).__name__}")
    if loss.numel() != 1:
        raise Invalid(f"the loss must be a scalar, got a tensor of shape {tuple(loss.shape)}: return its mean or sum")
    if not loss.is_floating_point():
        raise Invalid(f"the loss is of {loss.dtype}, which has no gradient: leave it in floating point")
    return loss


def in_precision(workload: Workload, name: str) -> Workload:
    """Return the workload in a precision: `bf16` and `fp16` cast weights and batch, `amp-*` use autocast."""
    if name in AMP:
        loss = workload.loss

        def cast(module: nn.Module, batch: Any) -> torch.Tensor:
            with torch.autocast(next(module.parameters()).device.type, dtype=AMP[name]):
                return loss(module, batch)

        return msgspec.structs.replace(workload, loss=cast)
    dtype = CAST[name]
    if dtype is None:
        return workload
    batch = pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, workload.batch
    )
    return msgspec.structs.replace(workload, module=workload.module.to(dtype), batch=batch)


def scaler_of(name: str, device: str) -> torch.amp.GradScaler | None:
    """Return the gradient scaler of amp-fp16; None for the others."""
    return torch.amp.GradScaler(device.partition(":")[0]) if name == "amp-fp16" else None


def unscaled(
    leaves: Collection[torch.Tensor],
    scaler: torch.amp.GradScaler | None,
    step: Callable[[torch.amp.GradScaler | None], torch.Tensor],
) -> torch.Tensor:
    """Run a step up to the gradients of leaves and divide them by their scale, a power of two; return its loss.

    If they overflow, the step runs again at half the scale, as the scaler does from one step to the next.
    """
    loss = step(scaler)
    if scaler is None:
        return loss
    while scaler.get_scale() > 1 and bool(loss.isfinite()):
        given = [leaf.grad for leaf in leaves if leaf.grad is not None]
        if all(bool((one.coalesce().values() if one.is_sparse else one).isfinite().all()) for one in given):
            break
        scaler.update(scaler.get_scale() / 2)
        loss = step(scaler)
    for leaf in leaves:
        if leaf.grad is not None:
            leaf.grad.div_(scaler.get_scale())
    return loss


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable the cyclic garbage collector: it takes a quarter of a trace, and the moments when it frees are random."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def num_parameters(module: nn.Module) -> int:
    """Return the number of values in all parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def tensors(tree: Any) -> list[torch.Tensor]:
    """Return all tensors in any nesting of tuples, lists and dicts."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def storage_bytes(held: list[torch.Tensor]) -> int:
    """Return the bytes of all storages behind these tensors, each counted once; of a DTensor, this rank's part."""
    return sum(bytes_by_storage(held).values())


def bytes_by_storage(held: list[torch.Tensor]) -> dict[int, int]:
    """Return the bytes of each storage behind these tensors, by its address."""
    storages = [part.untyped_storage() for tensor in held for part in dense_parts(tensor)]
    return {storage._cdata: allocated_bytes(storage) for storage in storages}


def allocated_bytes(storage: torch.UntypedStorage) -> int:
    """Return the bytes that a storage takes from its device's allocator."""
    return rounded(storage.nbytes(), storage.device.type)


def rounded(nbytes: int, kind: str) -> int:
    """Return the bytes that the allocator of a device type counts for a request, whether measured or predicted."""
    granule = GRANULE.get(kind, 1)
    return -(-nbytes // granule) * granule


def dense_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the tensors that have storages: the tensor, a sparse one's indices and values, a DTensor's local part."""
    own = local(tensor)
    return (own._indices(), own._values()) if own.is_sparse else (own,)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a DTensor; any other tensor as it is."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part
