"""The results of steps, on the host: loss, gradients, buffers, random state, plain attributes; compared, digested."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf, sqrt

import msgspec
import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from profiler.core.record import Equality, judge
from profiler.measuring.meters import HOST, LEAST_SCALE, ROUNDING, bytes_of, dense, difference, largest
from profiler.measuring.ranks import ALONE, Group
from profiler.training import kept_state
from profiler.training.workload import Mark, Workload, batch_statistics, local, trained
from profiler.training.workload import compared as compared_leaves

AGREE = 1e-5  # relative: buffers that differ less are equal but for rounding


def noise_floor(step: GradientStep, group: Group = ALONE, *, earlier: Mapping[str, str] | None = None) -> Equality:
    """Compare two runs of the step without checkpointing; `step` builds a workload and runs it to the gradients.

    An `earlier` run with the same digests replaces the second run.
    """
    first = collect_two(step)
    digests = _digests(first, group)
    second = first if digests == earlier else collect_two(step, first.gradients if group.mesh is None else None)
    result = compared(first, second, group)
    floor = result.largest_difference if result.largest_difference is not None else 0.0
    return msgspec.structs.replace(result, moved=(), noise_floor=floor, digests=digests)


def equal(digests: Mapping[str, str]) -> Equality:
    """Return the result for a step whose digests are those of the step without checkpointing."""
    return Equality(
        loss_equal=True, gradients_equal=True, buffers_equal=True, random_state_equal=True, digests=dict(digests)
    )


def verify(
    step: GradientStep,
    baseline: GradientStep,
    digests: Mapping[str, str],
    *,
    nudged: GradientStep | None = None,
    other_kernels: Callable[[], bool] = lambda: True,
    group: Group = ALONE,
) -> Equality:
    """Compare a strategy's two steps with the baseline's, by digests alone if these are equal.

    Otherwise the baseline is run twice more, for the noise floor and the differences, or once if that run has these
    digests and the strategy's gradients; and if `other_kernels`, called after the strategy's steps, says that other
    kernels do the same work, `nudged`: the baseline with weights changed in the last bit, which shows the effect of
    rounding. If the first gradients are wrong, that is the result. If they differ within the noise, the strategy is run
    again from the baseline's update, so that its second step has the same weights; ranks are not run again.
    """
    results = collect_two(step)
    own = _digests(results, group)
    if own == dict(digests):
        return equal(own)
    first = collect_two(baseline)
    is_alike = _digests(first, group) == dict(digests) and compared(first, results, group).gradients_equal
    second = first if is_alike else collect_two(baseline, first.gradients if group.mesh is None else None)
    floor = compared(first, second, group).largest_difference or 0.0
    nearby = collect(nudged) if nudged and other_kernels() else None
    rounding = compared(first, nearby, group).largest_difference or 0.0 if nearby else None
    floors = {"noise_floor": floor, "rounding_floor": rounding, "digests": own}
    alone = msgspec.structs.replace(results, second=None)
    result = msgspec.structs.replace(_closest((first, second), alone, group), **floors)
    if judge(result, strict=False) is not None:  # a second step would have other weights anyway
        return result
    if not result.gradients_equal and group.mesh is None:
        results = msgspec.structs.replace(results, second=collect_two(step, first.gradients).second)
    return msgspec.structs.replace(_closest((first, second), results, group), **floors)


def _closest(references: Sequence[Results], results: Results, group: Group) -> Equality:
    """Compare with the nearest reference; plain state in which the references themselves differ is not named."""
    comparisons = [compared(reference, results, group) for reference in references]
    result = min(comparisons, key=lambda comparison: comparison.largest_difference or 0.0)
    both = [name for name in result.moved if all(name in comparison.moved for comparison in comparisons)]
    steady = [name for name in both if len({reference.moved.get(name) for reference in references}) == 1]
    return msgspec.structs.replace(result, moved=tuple(steady))


def apart(step: GradientStep, other: GradientStep, group: Group = ALONE) -> float:
    """Return the largest relative difference of two steps' gradients."""
    return compared(collect(step), collect(other), group).largest_difference or 0.0


def distance(reference: Gradients, other: Gradients) -> float:
    """Return the norm of the difference of all gradients over the reference's norm; infinite if one is missing."""
    if any((gradient is None) != (other.get(name) is None) for name, gradient in reference.items()):
        return inf
    pairs = [(dense(one).double(), dense(other[name]).double()) for name, one in reference.items() if one is not None]  # type: ignore[arg-type]
    apart = sum(float((one - to).square().sum()) for one, to in pairs)
    return sqrt(apart / (sum(float(one.square().sum()) for one, _ in pairs) or inf))


def compared(reference: Results, other: Results, group: Group = ALONE) -> Equality:
    """Compare on every rank; the result is equal if all ranks are, and has the differences of the worst rank."""
    comparisons = group.gather(compare(reference, other))
    worst = max(comparisons, key=lambda comparison: comparison.largest_difference or 0.0)
    names = ("loss_equal", "gradients_equal", "buffers_equal", "random_state_equal")
    return msgspec.structs.replace(
        worst,
        **{name: all(getattr(comparison, name) for comparison in comparisons) for name in names},
        buffers_difference=max(comparison.buffers_difference or 0.0 for comparison in comparisons) or None,
        missing=next((comparison.missing for comparison in comparisons if comparison.missing), ()),
        moved=tuple(dict.fromkeys(name for comparison in comparisons for name in comparison.moved)),
    )


def compare(reference: Results, other: Results) -> Equality:
    """Compare steps bit by bit; if gradients differ, add the largest difference with its parameter and step.

    The second steps are compared if both have one.
    """
    pairs = [(reference, other)]
    if reference.second and other.second:
        pairs.append((reference.second, other.second))
    equal_gradients = [equal_bits(first.gradients, second.gradients) for first, second in pairs]
    differences = {
        (name, number): amount
        for number, (pair, is_equal) in enumerate(zip(pairs, equal_gradients, strict=True), start=1)
        for name, amount in _differences(*pair, is_equal=is_equal, device=other.device).items()
    }
    worst = max(differences, key=lambda place: differences[place])
    missing = {
        name: None
        for first, second in pairs
        for name, gradient in first.gradients.items()
        if gradient is not None and second.gradients.get(name) is None
    }
    buffers = {
        name: amount
        for name, buffer in reference.buffers.items()
        if (amount := difference(buffer, other.buffers.get(name), device=other.device))
    }
    return Equality(
        loss_equal=all(equal_bits({"": first.loss}, {"": second.loss}) for first, second in pairs),
        gradients_equal=all(equal_gradients),
        buffers_equal=equal_bits(reference.buffers, other.buffers),
        random_state_equal=equal_bits(reference.random_states, other.random_states),
        random_sources=tuple(
            name
            for name, state in reference.random_states.items()
            if not torch.equal(state, other.random_states.get(name, torch.empty(0)))
        ),
        largest_difference=differences[worst] or None,
        buffers_difference=max((buffers[name] for name in buffers.keys() - reference.counts), default=None),
        differing_buffers=tuple(sorted(buffers, key=lambda name: (name in reference.counts, -buffers[name]))),
        worst_parameter=worst[0] if differences[worst] else None,
        worst_step=worst[1] if differences[worst] else None,
        moved=tuple(kept_state.moved(dict(reference.moved), dict(other.moved))),
        missing=tuple(missing),
        num_gradients=sum(gradient is not None for gradient in reference.gradients.values()),
    )


def _differences(reference: Results, other: Results, *, is_equal: bool, device: torch.device) -> dict[str, float]:
    """Return the relative difference of each gradient, and of the loss."""
    if is_equal:
        gradients = dict.fromkeys(reference.gradients, 0.0)
    else:
        sizes = [largest(tensor, device=device) for tensor in reference.gradients.values() if tensor is not None]
        least = LEAST_SCALE * max(sizes, default=0.0)  # of one that is 0 but for rounding, as before a BatchNorm
        gradients = {
            name: difference(tensor, other.gradients.get(name), least_scale=least, device=device)
            for name, tensor in reference.gradients.items()
        }
    return {**gradients, "(loss)": difference(reference.loss, other.loss)}


def is_rounding(equality: Equality) -> bool:
    """Whether no gradient is missing and the differences are small enough to come from rounding."""
    return not equality.missing and (equality.largest_difference or 0.0) <= ROUNDING


def _digests(results: Results, group: Group) -> dict[str, str]:
    """Digests of every rank, combined; a single rank returns its own."""
    by_rank = group.gather(results.digests())
    if len(by_rank) == 1:
        return by_rank[0]
    return {
        name: hashlib.blake2b(" ".join(digests[name] for digests in by_rank).encode(), digest_size=16).hexdigest()
        for name in by_rank[0]
    }


Gradients = dict[str, torch.Tensor | None]  # of the parameters, by name; sparse where the step's are


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """A fresh workload that has been run to its gradients."""

    workload: Workload
    loss: torch.Tensor
    moved: Mapping[str, str] = {}  # plain Python attributes that the step has changed
    again: Callable[[], torch.Tensor]  # runs the optimizer's step, and the next step to its gradients


GradientStep = Callable[[], Ran]


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one step, copied to the host."""

    loss: torch.Tensor
    gradients: Gradients
    buffers: dict[str, torch.Tensor] = {}
    counts: frozenset[str] = frozenset()  # buffers that count a norm's batches: how far they differ proves nothing
    random_states: dict[str, torch.Tensor] = {}  # by source
    moved: Mapping[str, str] = {}  # plain Python attributes that the step has changed, with what they hold
    second: Results | None = None  # loss and gradients of the next step
    device: torch.device = HOST  # of the step: its differences from another are reduced there

    def digests(self) -> dict[str, str]:
        """Return one digest (128 bits, in hexadecimal) of each kind of result; equal results have equal digests."""
        later = {"loss": self.second.loss, **self.second.gradients} if self.second else {}
        return {
            "loss": digest_of({"loss": self.loss}),
            "random": digest_of(self.random_states),
            "second step": digest_of(later),
            **state_digests(self.gradients, self.buffers, self.moved),
        }


def state_digests(
    gradients: Gradients, buffers: Mapping[str, torch.Tensor], moved: Mapping[str, str]
) -> dict[str, str]:
    """Return the digests of `Results.digests` that describe the model."""
    return {
        "gradients": digest_of(gradients),
        "buffers": digest_of(buffers),
        "plain state": hashlib.blake2b(repr(sorted(moved.items())).encode(), digest_size=16).hexdigest(),
    }


def nudge(workload: Workload) -> None:
    """Move every weight to an adjacent number of its type, by turns toward infinity and toward 0."""
    with torch.no_grad():
        for index, parameter in enumerate(map(local, workload.module.parameters())):
            if parameter.is_floating_point():
                towards = torch.full_like(parameter, 0.0 if index % 2 else float("inf"))
                parameter.copy_(torch.nextafter(parameter, towards))


def tells(gradients: Iterable[torch.Tensor | None]) -> bool:
    """Whether any gradient value is finite and not zero: if none is, even wrong strategies compare equal."""
    values = (dense(gradient) for gradient in gradients if gradient is not None)
    return any(bool((gradient.isfinite() & (gradient != 0)).any()) for gradient in values)


def collect(step: GradientStep) -> Results:
    """Run a step; return its results, copied to the host."""
    return _results(step())


def collect_two(step: GradientStep, update: Gradients | None = None) -> Results:
    """Run a step, the optimizer's step, and the next step; return their results, copied to the host.

    The optimizer uses the gradients of `update`, if given, so that another model gets the same weights; sharded models
    use their own.
    """
    ran = step()
    results, parameters = _results(ran), compared_leaves(ran.workload)
    for name, gradient in (update or {}).items():
        parameter = parameters[name]
        parameter.grad = None if gradient is None else gradient.to(parameter.device, parameter.dtype, copy=True)
    loss = ran.again()
    second = Results(loss=copied(loss), gradients=gradients_of(ran.workload))
    return msgspec.structs.replace(results, second=second)


def _results(ran: Ran) -> Results:
    return Results(
        loss=copied(ran.loss),
        gradients=gradients_of(ran.workload),
        buffers=buffers_of(ran.workload.module),
        counts=batch_statistics(ran.workload.module, of=("num_batches_tracked",)),
        random_states=kept_state.random_states(ran.workload, ran.loss.device),
        moved=ran.moved,
        device=ran.loss.device,
    )


def buffers_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of all buffers, by name."""
    return {name: copied(buffer) for name, buffer in module.named_buffers()}


def gradients_of(workload: Workload) -> Gradients:
    """Return copies of the gradients of all leaves that are compared; None for a leaf without one."""
    return {
        name: None
        if (own := parameter.grad) is None  # sparse ones stay so: some optimizers take no other
        else own.detach().coalesce().to("cpu", copy=True)
        if own.is_sparse
        else copied(own)
        for name, parameter in compared_leaves(workload).items()
    }


def without_gradient(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the parameters that need a gradient and have none, as they are after a backward."""
    named = module.named_parameters()
    return tuple(name for name, parameter in named if parameter.requires_grad and parameter.grad is None)


@contextmanager
def weights_kept(workload: Workload) -> Iterator[None]:
    """Restore the weights that steps in the block change, from copies on the host."""
    parameters = [one for one in trained(workload).values() if one.requires_grad and not one.is_meta]
    weights = [local(parameter).detach().to("cpu", copy=True) for parameter in parameters]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, weight in zip(parameters, weights, strict=True):
                local(parameter).copy_(weight)


class StepDigests:
    """Digests of two steps of a fresh workload."""

    def __init__(self, workload: Workload) -> None:
        self.digests: dict[str, str] = {}  # of both steps, once they are finished; empty if they could not be taken
        self._has_failed = False
        self.tells = False  # whether any gradient was finite and not zero
        self.trains = any(parameter.requires_grad for parameter in trained(workload).values())
        self.lost: tuple[str, ...] = ()  # parameters that train and got no gradient
        self._workload = workload
        self._before = kept_state.image(workload.module)
        self._num_steps = 0
        self._first: dict[str, str] = {}
        self._later = hashlib.blake2b(digest_size=16)

    def watched(self, step: Callable[[Mark], torch.Tensor]) -> Callable[[Mark], torch.Tensor]:
        """Return the step, which is to be run twice, with digests taken."""

        def run(mark: Mark) -> torch.Tensor:
            self._num_steps += 1
            is_first = self._num_steps == 1

            def marked(phase: str) -> None:
                if is_first and phase == "optimizer":  # after the backward, before the optimizer's step
                    self._taken(self._of_gradients)
                mark(phase)

            loss = step(marked)
            self._taken(lambda: self._of_loss(loss, is_first=is_first))
            return loss

        return run

    def _of_loss(self, loss: torch.Tensor, *, is_first: bool) -> None:
        if is_first:
            random_states = kept_state.random_states(self._workload, loss.device)
            self._first |= {"loss": digest_of({"loss": copied(loss)}), "random": digest_of(random_states)}
        elif self._num_steps == 2:
            _add(self._later, {"loss": copied(loss)})

    def finish(self) -> None:
        """Add the second step's gradients, while they exist, and complete the digests."""
        self._taken(lambda: _add(self._later, gradients_of(self._workload)))
        self.digests = {} if self._has_failed else {**self._first, "second step": self._later.hexdigest()}
        del self._workload

    def _taken(self, look: Callable[[], None]) -> None:
        """Take a digest. What cannot be read (it is of a user's class, or memory runs out) must not end the step."""
        try:
            look()
        except Exception:  # noqa: BLE001  the equality pass, which reads the same, tells why
            self._has_failed = True

    def _of_gradients(self) -> None:
        module, gradients = self._workload.module, gradients_of(self._workload)
        moved = kept_state.moved(self._before, kept_state.image(module))
        self._first = state_digests(gradients, buffers_of(module), moved)
        self.tells = tells(gradients.values())
        self.lost = without_gradient(module)


def equal_bits(tensors: Mapping[str, torch.Tensor | None], others: Mapping[str, torch.Tensor | None]) -> bool:
    """Whether both have the same names, in order, each with a tensor of the same shape, type and bits, or with none."""

    def equal(tensor: torch.Tensor | None, other: torch.Tensor | None) -> bool:
        if tensor is None or other is None:
            return tensor is other
        are_alike = tensor.shape == other.shape and tensor.dtype == other.dtype
        return are_alike and torch.equal(bytes_of(dense(tensor)), bytes_of(dense(other)))

    return list(tensors) == list(others) and all(equal(tensors[name], others[name]) for name in tensors)


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain copy on the host: a sharded tensor is gathered whole, a subclass becomes a torch.Tensor.

    So tensors of a user's class are compared by their values, not by how the class overrides operators. For a wrapper
    subclass, which holds other tensors instead of values, those are copied one after the other.
    """
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    if is_traceable_wrapper_subclass(whole):
        names, _ = whole.__tensor_flatten__()
        parts = [copied(getattr(whole, name)).flatten() for name in names]
        return torch.cat([torch.view_as_real(part).flatten() if part.is_complex() else part for part in parts])
    plain = whole.detach()
    return (
        dense(plain if type(plain) is torch.Tensor else plain.as_subclass(torch.Tensor))
        .to("cpu", copy=True)
        .contiguous()
    )


def digest(tensors: Sequence[torch.Tensor]) -> str:
    """Return a digest of the values of tensors, in order."""
    return digest_of({str(number): copied(tensor) for number, tensor in enumerate(tensors)})


def digest_of(tensors: Mapping[str, torch.Tensor | None]) -> str:
    """Return a digest of the names and values of tensors on the host, in order: 128 bits, in hexadecimal."""
    digest = hashlib.blake2b(digest_size=16)
    _add(digest, tensors)
    return digest.hexdigest()


def _add(digest: hashlib.blake2b, tensors: Mapping[str, torch.Tensor | None]) -> None:
    for name, tensor in tensors.items():
        digest.update(f"{name} {None if tensor is None else (tuple(tensor.shape), tensor.dtype)}".encode())
        if tensor is not None:
            digest.update(bytes_of(dense(tensor)).numpy().data)
