"""Compares what two steps left behind: loss, gradients, buffers, random state."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence

import msgspec
import torch

from profiler.core.record import Equality, is_reproducible
from profiler.measuring.ranks import ALONE, Group
from profiler.training import random_sources
from profiler.training.workload import Workload, local

NOISE_MARGIN = 4.0  # a difference up to this many noise floors is noise: the floor is itself one sample of it
ROUNDING = 2.0**-12  # relative, the root of fp32's last bit: kernels that differ by more do not do the same work
AGREE = 1e-5  # relative: buffers that differ less are equal but for rounding
GradientStep = Callable[[], tuple[Workload, torch.Tensor]]  # a fresh workload, run to its gradients, and its loss


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """What one step left behind, as copies on the host."""

    loss: torch.Tensor
    gradients: dict[str, torch.Tensor | None]
    buffers: dict[str, torch.Tensor]
    random_states: dict[str, torch.Tensor]  # by source

    def digests(self) -> dict[str, str]:
        return {
            "loss": _digest({"loss": self.loss}),
            "gradients": _digest(self.gradients),
            "buffers": _digest(self.buffers),
            "random": _digest(self.random_states),
        }


def noise_floor(step: GradientStep, group: Group = ALONE) -> Equality:
    """Compares the step without checkpointing with itself: `step` builds a workload and runs it to the gradients."""
    first = collect(step)
    second = collect(step)
    result = compared(first, second, group)
    floor = result.largest_difference if result.largest_difference is not None else 0.0
    return msgspec.structs.replace(result, noise_floor=floor, digests=_digests(first, group))


def verify(
    step: GradientStep,
    baseline: GradientStep,
    digests: Mapping[str, str],
    *,
    nudged: GradientStep | None = None,
    group: Group = ALONE,
) -> Equality:
    """Compares a strategy's step with the baseline's: by digests alone where these are equal.

    Only where they differ is the baseline run again, twice, for the noise floor and the differences. `nudged` is the
    baseline with weights that differ in the last bit: what rounding makes of the gradients of this model, for
    strategies that do the same work by other kernels.
    """
    results = collect(step)
    own = _digests(results, group)
    if own == dict(digests):
        return Equality(loss_equal=True, gradients_equal=True, buffers_equal=True, random_state_equal=True, digests=own)
    first, second = collect(baseline), collect(baseline)
    comparisons = compared(first, results, group), compared(second, results, group)
    result = min(comparisons, key=lambda comparison: comparison.largest_difference or 0.0)
    floor = compared(first, second, group).largest_difference or 0.0
    rounding = compared(first, collect(nudged), group).largest_difference or 0.0 if nudged else None
    return msgspec.structs.replace(result, noise_floor=floor, rounding_floor=rounding, digests=own)


def apart(step: GradientStep, other: GradientStep, group: Group = ALONE) -> float:
    """The largest relative difference of two steps' gradients."""
    return compared(collect(step), collect(other), group).largest_difference or 0.0


def nudge(workload: Workload) -> None:
    """Move every weight to a neighbouring number of its type, away from 0 and towards it by turns."""
    with torch.no_grad():
        for index, parameter in enumerate(map(local, workload.module.parameters())):
            if parameter.is_floating_point():
                towards = torch.full_like(parameter, 0.0 if index % 2 else float("inf"))
                parameter.copy_(torch.nextafter(parameter, towards))


def tells(workload: Workload) -> bool:
    """Whether any gradient is finite and not zero: where none is, all strategies are equal, the wrong ones too."""
    gradients = [local(parameter.grad) for parameter in workload.module.parameters() if parameter.grad is not None]
    return any(bool((gradient.isfinite() & (gradient != 0)).any()) for gradient in map(_dense, gradients))


def collect(step: GradientStep) -> Results:
    """Run a step and copy what it left to the host."""
    workload, loss = step()
    module = workload.module
    return Results(
        loss=_copy(loss),
        gradients={
            name: None if parameter.grad is None else _copy(parameter.grad)
            for name, parameter in module.named_parameters()
        },
        buffers={
            name: _copy(buffer) for name, buffer in module.named_buffers() if not name.endswith("num_batches_tracked")
        },
        random_states=random_sources.states(workload, loss.device),
    )


def compared(reference: Results, other: Results, group: Group = ALONE) -> Equality:
    """Compares as `compare` does on every rank: equal where all ranks are, with the differences of the worst rank."""
    comparisons = group.gather(compare(reference, other))
    worst = max(comparisons, key=lambda comparison: comparison.largest_difference or 0.0)
    names = ("loss_equal", "gradients_equal", "buffers_equal", "random_state_equal")
    return msgspec.structs.replace(
        worst,
        **{name: all(getattr(comparison, name) for comparison in comparisons) for name in names},
        buffers_difference=max(comparison.buffers_difference or 0.0 for comparison in comparisons) or None,
        missing=next((comparison.missing for comparison in comparisons if comparison.missing), ()),
    )


def compare(reference: Results, other: Results) -> Equality:
    """Compares two steps bit by bit; where gradients differ, also by how much and in which parameter most."""
    differences = {name: difference(tensor, other.gradients.get(name)) for name, tensor in reference.gradients.items()}
    differences["(loss)"] = difference(reference.loss, other.loss)
    worst = max(differences, key=lambda name: differences[name])
    mine, yours = reference.digests(), other.digests()
    return Equality(
        loss_equal=mine["loss"] == yours["loss"],
        gradients_equal=mine["gradients"] == yours["gradients"],
        buffers_equal=mine["buffers"] == yours["buffers"],
        random_state_equal=mine["random"] == yours["random"],
        random_sources=tuple(
            name
            for name, state in reference.random_states.items()
            if not torch.equal(state, other.random_states.get(name, torch.empty(0)))
        ),
        largest_difference=differences[worst] or None,
        buffers_difference=_largest_of_buffers(reference.buffers, other.buffers),
        worst_parameter=worst if differences[worst] else None,
        missing=tuple(
            name
            for name, gradient in reference.gradients.items()
            if gradient is not None and other.gradients.get(name) is None
        ),
        num_gradients=sum(gradient is not None for gradient in reference.gradients.values()),
    )


def judge(equality: Equality | None, *, strict: bool) -> str | None:
    """Why these gradients do not count as the baseline's; None where they do, or where nobody asks to be strict."""
    if equality is None:
        return "not verified: there is nothing to compare with" if strict else None
    if equality.missing:
        names = ", ".join(equality.missing[:3]) + (", ..." if len(equality.missing) > 3 else "")
        return f"{len(equality.missing)} of {equality.num_gradients} parameters have no gradient: {names}"
    largest, floor = equality.largest_difference or 0.0, equality.noise_floor or 0.0
    allowed = NOISE_MARGIN * max(floor, equality.rounding_floor or 0.0)
    across = equality.ranks_difference or 0.0
    if across > (0.0 if strict else allowed):
        where = f", worst in {equality.worst_parameter}" if equality.worst_parameter else ""
        return f"gradients differ by {across:.1e}{where} from the mean of those of one process with all ranks' batches"
    if equality.gradients_equal and equality.loss_equal:
        return None
    if not strict and allowed and largest <= allowed:
        return None
    where = f", worst in {equality.worst_parameter}" if equality.worst_parameter else ""
    cause = f": the recompute draws other numbers from {', '.join(drawn)}" if (drawn := unkept(equality)) else ""
    return f"gradients differ by {largest:.1e}{where}; two runs without checkpointing differ by {floor:.1e}{cause}"


def unkept(equality: Equality) -> list[str]:
    """Returns the random sources that a recompute drew from again, since checkpoints put only torch's own back."""
    return [name for name in equality.random_sources if name != "torch"]


def not_reproducible(equality: Equality, precision: str) -> str | None:
    """Why no gradients can be verified, in a sentence; None where the step without checkpointing repeats itself."""
    if is_reproducible(equality, precision):
        return None
    where = f", worst in {equality.worst_parameter}" if equality.worst_parameter else ""
    return (
        f"two runs without checkpointing differ by {equality.noise_floor:.1e}{where}: nothing can be verified. The "
        "step draws numbers that gcprof cannot seed (os.urandom, the time), keeps state from call to call, or has "
        "kernels that are not deterministic"
    )


def is_rounding(equality: Equality) -> bool:
    """Whether the differences are as small as other rounding makes them, with no gradient missing."""
    return not equality.missing and (equality.largest_difference or 0.0) <= ROUNDING


def difference(reference: torch.Tensor | None, other: torch.Tensor | None) -> float:
    """The largest absolute difference over the largest absolute value of both: 0 to 2; 2 where one is not finite."""
    if reference is None or other is None:
        return 0.0 if reference is other else 2.0
    if torch.equal(_bytes(reference), _bytes(other)):
        return 0.0
    wide, other_wide = reference.double(), other.double()
    scale = torch.maximum(wide.abs().max(), other_wide.abs().max())
    relative = float((wide - other_wide).abs().max() / scale)
    return relative if math.isfinite(relative) else 2.0


def _largest_of_buffers(reference: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float | None:
    return max((difference(buffer, other.get(name)) for name, buffer in reference.items()), default=0.0) or None


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy on the host, whole where the tensor is sharded over the ranks."""
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return _dense(whole.detach()).to("cpu", copy=True).contiguous()


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_dense() if tensor.is_sparse else tensor


def digest(tensors: Sequence[torch.Tensor]) -> str:
    """Returns a digest of the values of tensors, in order."""
    return _digest({str(number): _copy(tensor) for number, tensor in enumerate(tensors)})


def _digests(results: Results, group: Group) -> dict[str, str]:
    """Digests of every rank, combined; a single rank returns its own."""
    by_rank = group.gather(results.digests())
    if len(by_rank) == 1:
        return by_rank[0]
    return {
        name: hashlib.blake2b(" ".join(digests[name] for digests in by_rank).encode(), digest_size=16).hexdigest()
        for name in by_rank[0]
    }


def _digest(tensors: Mapping[str, torch.Tensor | None]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in tensors.items():
        digest.update(f"{name} {None if tensor is None else (tuple(tensor.shape), tensor.dtype)}".encode())
        if tensor is not None:
            digest.update(_bytes(tensor).numpy().data)
    return digest.hexdigest()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten().view(torch.uint8)  # (bytes,)
