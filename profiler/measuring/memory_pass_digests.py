"""Takes digests of the memory pass's steps, for the equality pass to compare; the weights are restored afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from profiler.measuring.bench import Bench
from profiler.measuring.meters.step_results import StepDigests
from profiler.training import precision
from profiler.training.assemble import Assembled
from profiler.training.workload import Mark, Step, Workload, local, trained


@contextmanager
def watched(bench: Bench, built: Assembled, step: Step) -> Iterator[Step]:
    """Yield the training step; digests of its first two runs are taken for `compare`, if it can use them.

    The weights are restored: a factory may return the same module each time.
    """
    digests = _digests(bench, built)
    if digests is None:
        yield step
        return

    def heard(mark: Mark) -> torch.Tensor:
        with bench.hearing():
            loss: torch.Tensor = step(mark)
            return loss

    with weights_kept(built.workload):
        yield digests.watched(heard)
        digests.finish()
    bench.step_digests = digests if digests.digests else None


def _digests(bench: Bench, built: Assembled) -> StepDigests | None:
    """Return what takes the digests; None if they cannot be used, or if the model has state that cannot be read."""
    if not _can_watch(bench, built):
        return None
    try:
        return StepDigests(built.workload)
    except Exception:  # noqa: BLE001  state of a user's class; the equality pass, which reads it too, tells why
        return None


def _can_watch(bench: Bench, built: Assembled) -> bool:
    """Whether the digests can be used: requested, known baseline, one process, real arithmetic, no gradient scaler.

    The model must also settle in one step.
    """
    case, trial = bench.trial.case, bench.trial
    is_asked = "equality" in trial.passes and case.verify != "off"
    is_known = case == case.baseline or trial.digests is not None
    is_alone = bench.group.size == 1 and bench.group.mesh is None and not bench.device.is_hollow
    has_scaler = precision.scaler(case.precision, case.torch_device) is not None
    return is_asked and is_known and is_alone and not has_scaler and built.workload.settling == 1


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
