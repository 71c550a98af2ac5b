"""The seconds of a script's step on a GPU that is not here, by the roofline model: estimated, never measured."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from profiler.core.gpu_specs import Rates
from profiler.core.roofline import operator_seconds, stated_error
from profiler.core.trace_data import Operator

NOT_REACHED = "no second step was made"
COLLECTIVES = "c10d"


class Estimate(NamedTuple):
    """Seconds of one step; None, and why, where they are not known."""

    seconds: float | None
    why: str | None = None


def of_lines(lines: Iterable[dict[str, Any]], rates: Rates) -> Estimate:
    """Return the estimate by what the watch wrote of a process' second step. Source: see `roofline.seconds`.

    What ranks send each other is not counted.
    """
    line = next((line for line in lines if line["kind"] == "work"), None)
    if line is None or line["why"]:
        return Estimate(None, line["why"] if line else NOT_REACHED)
    total = 0.0
    for name, kind, flops, nbytes, num in line["calls"]:
        if not name.startswith(COLLECTIVES):
            total += num * operator_seconds(Operator(name, "", "", flops, nbytes), rates, kind)
    return Estimate(total)


def caveat(rates: Rates, *, has_ranks: bool) -> str:
    """Return what such times are worth."""
    alone = ", without what ranks send each other" if has_ranks else ""
    return f"of the second step{alone}, {stated_error(rates, 'fp32')}"
