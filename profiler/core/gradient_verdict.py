"""Decides from a comparison of gradients whether they count as the baseline's: when measuring, and when reading."""

from __future__ import annotations

from collections.abc import Sequence

from profiler.core.case import Case
from profiler.core.record import Equality, is_reproducible
from profiler.core.units import few

NOISE_MARGIN = 4.0  # a difference up to this many noise floors is noise: the floor is itself one sample of it
MOST_NAMED = 3  # of parameters, attributes and buffers


def why_invalid(case: Case, equality: Equality | None, *, rewritten: Sequence[str] = ()) -> str | None:
    """Return why a trial of this case is invalid by its gradients; None if it is not.

    A baseline whose noise is too large is no fault of its own. `rewritten` is as for `judge`.
    """
    noise = not_reproducible(equality, case.precision) if equality else None
    if noise and case == case.baseline:
        return None
    if noise and equality and not equality.missing:
        return noise
    return judge(equality, strict=case.verify == "strict", rewritten=rewritten)


def judge(equality: Equality | None, *, strict: bool, rewritten: Sequence[str] = ()) -> str | None:
    """Return why these gradients do not count as the baseline's; None if they do.

    Without a comparison, there is a reason only if `strict`. `rewritten` are buffers that a recompute has written into
    again and that the forward may read.
    """
    if equality is None:
        return "not verified: there is nothing to compare with" if strict else None
    if equality.missing:
        names = ", ".join(equality.missing[:3]) + (", ..." if len(equality.missing) > 3 else "")
        return f"{len(equality.missing)} of {equality.num_gradients} parameters have no gradient: {names}"
    largest, floor = equality.largest_difference or 0.0, equality.noise_floor or 0.0
    allowed = NOISE_MARGIN * max(floor, equality.rounding_floor or 0.0)
    across = equality.ranks_difference or 0.0
    where = f", worst in {equality.worst_parameter}" if equality.worst_parameter else ""
    if across > (0.0 if strict else allowed):
        return f"gradients differ by {across:.1e}{where} from the mean of those of one process with all ranks' batches"
    if (equality.gradients_equal and equality.loss_equal) or (not strict and allowed and largest <= allowed):
        return None
    where += " of the second step, while those of the first agree" if equality.worst_step == 2 else ""
    cause = f": the recompute draws different numbers from {', '.join(drawn)}" if (drawn := unkept(equality)) else ""
    changed = few((*equality.moved, *rewritten), MOST_NAMED)
    cause = cause or (f": the recompute changes {changed} again" if changed else "")
    return f"gradients differ by {largest:.1e}{where}; two runs without checkpointing differ by {floor:.1e}{cause}"


def unkept(equality: Equality) -> list[str]:
    """Return the random sources that a recompute drew from again: checkpoints restore only torch's own."""
    return [name for name in equality.random_sources if name != "torch"]


def not_reproducible(equality: Equality, precision: str) -> str | None:
    """Return why no gradients can be verified; None if the step without checkpointing is reproducible."""
    if is_reproducible(equality, precision):
        return None
    where = f", worst in {equality.worst_parameter}" if equality.worst_parameter else ""
    return (
        f"two runs without checkpointing differ by {equality.noise_floor:.1e}{where}: nothing can be verified. The "
        "step draws numbers that gcprof cannot seed (os.urandom, the time), keeps state from call to call, or has "
        "kernels that are not deterministic"
    )
