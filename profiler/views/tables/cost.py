"""What a sweep costs, in words: knows nothing of commands."""

from __future__ import annotations

from profiler.analysis.cost import Bounds, SweepCost
from profiler.core.units import count_text


def lines(cost: SweepCost, *, basis: str | None = None, start: str = "", unknown: str = "") -> list[str]:
    """`basis` says what the seconds rest on, `start` what a trial's start does; `unknown` why some have none."""
    num_measured = cost.num_trials - cost.num_predicted
    predicted = f", {cost.num_predicted:,} of them predictions, which need no device" if cost.num_predicted else ""
    found = [f"{count_text(cost.num_trials, 'trial')}{predicted}"]
    if not num_measured:
        return found
    until = f"; a round is timed for up to {cost.sampling_seconds:g} s, or 5 steps" if cost.sampling_seconds else ""
    found.append(f"steps: {_span(cost.steps)}{until}; of steps of less than 1 ms several make a sample")
    if cost.gpu_seconds is not None:
        found.append(f"GPU seconds: {_span(cost.gpu_seconds)}, predicted, not measured")
        found.append(f"  {start} a trial; {basis}")
    if unknown:
        found.append(f"GPU seconds of {count_text(cost.num_unknown, 'trial')}: not known: {unknown}")
    return found


def _span(span: Bounds) -> str:
    least, most = _number(span.least), _number(span.most)
    return least if least == most else f"{least} to {most}"


def _number(value: float) -> str:
    """Whole, or with two digits where it is small."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"
