"""Estimates the seconds of each stage on a GPU that may be absent, from traced steps and the GPU's rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from profiler.core.gpu_specs import Rates
from profiler.core.roofline import operator_seconds
from profiler.core.trace_data import Trace
from profiler.predicting.staging.pooled_seconds import Seconds
from profiler.predicting.staging.stage_operators import StageSpan


def seconds(
    trace: Trace,
    stages: Sequence[StageSpan],
    selective: Mapping[str, tuple[Trace, Mapping[str, StageSpan]]],
    rates: Rates,
    precision: str,
) -> list[Seconds]:
    """Return the seconds of each stage with ideal kernels. `selective` has, for each save option, the trace of a step
    with it and that step's stages by name. The optimizer's time is counted in the last stage.
    """
    clock = _Clock(trace, rates, precision)
    others = {
        save: (_Clock(selective_trace, rates, precision), spans) for save, (selective_trace, spans) in selective.items()
    }
    stage_seconds = [_stage(stage, clock, others) for stage in stages]
    inside = sum(stage.forward + stage.backward for stage in stage_seconds)
    return [*stage_seconds[:-1], _longer(stage_seconds[-1], clock.between(1, len(trace.operators)) - inside)]


class _Clock:
    """Cumulative seconds over the operators of a trace."""

    def __init__(self, trace: Trace, rates: Rates, precision: str) -> None:
        self._until = [0.0]
        for operator in trace.operators:
            self._until.append(self._until[-1] + operator_seconds(operator, rates, precision))

    def between(self, first: int, last: int) -> float:
        """Return the seconds of the operators `first` to `last`, both included; 0 if there are none."""
        return max(0.0, self._until[last] - self._until[first - 1])

    def both(self, stage: StageSpan) -> tuple[float, float]:
        """Return the seconds of a stage's forward and backward."""
        return self.between(stage.first, stage.last), self.between(stage.backward_first, stage.backward_last)


def _stage(stage: StageSpan, clock: _Clock, others: Mapping[str, tuple[_Clock, Mapping[str, StageSpan]]]) -> Seconds:
    forward, backward = clock.both(stage)
    return Seconds(
        forward=forward,
        backward=backward,
        early_stop=clock.between(stage.first, min(stage.stop, stage.last)),
        options={
            save: other_clock.both(spans[stage.name])
            for save, (other_clock, spans) in others.items()
            if stage.name in spans
        },
    )


def _longer(last: Seconds, more: float) -> Seconds:
    return Seconds(
        forward=last.forward + max(0.0, more),
        backward=last.backward,
        early_stop=last.early_stop + max(0.0, more),
        options=last.options,
    )
