"""Compares the results of steps: loss, gradients, buffers, random state, plain attributes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from math import inf, sqrt

import msgspec
import torch

from profiler.core.record import Equality, judge
from profiler.measuring.meters.step_results import (
    Gradients,
    GradientStep,
    Results,
    Second,
    collect,
    collect_two,
    equal_bits,
)
from profiler.measuring.meters.tensor_difference import LEAST_SCALE, ROUNDING, dense, difference, largest
from profiler.measuring.ranks import ALONE, Group
from profiler.training import kept_state

AGREE = 1e-5  # relative: buffers that differ less are equal but for rounding


def noise_floor(step: GradientStep, group: Group = ALONE, *, earlier: Mapping[str, str] | None = None) -> Equality:
    """Compare two runs of the step without checkpointing; `step` builds a workload and runs it to the gradients.

    An `earlier` run with the same digests replaces the second run.
    """
    first = collect_two(step)
    digests = _digests(first, group)
    second = first if digests == earlier else collect_two(step, _update(first, group))
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
    second = first if is_alike else collect_two(baseline, _update(first, group))
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


def _update(first: Results, group: Group) -> Gradients | None:
    """Return the gradients with which a second run updates its weights; None for sharded ones, which use their own."""
    return first.gradients if group.mesh is None else None


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
    pairs: list[tuple[Results | Second, Results | Second]] = [(reference, other)]
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


def _differences(
    reference: Results | Second, other: Results | Second, *, is_equal: bool, device: torch.device
) -> dict[str, float]:
    """Return the relative difference of each gradient, and of the loss.

    A gradient that is 0 but for rounding, such as that of a bias before a BatchNorm, is compared with the largest
    gradient of the model.
    """
    if is_equal:
        gradients = dict.fromkeys(reference.gradients, 0.0)
    else:
        sizes = [largest(tensor, device=device) for tensor in reference.gradients.values() if tensor is not None]
        least = LEAST_SCALE * max(sizes, default=0.0)
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
