"""What is live over a step in as many points as a picture has: knows nothing of pictures."""

from __future__ import annotations

import msgspec

from profiler.core.stats import highest
from profiler.core.trace_data import Trace, by_category, live


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """What is live at some of a step's operators; 0 is before the step."""

    operators: tuple[int, ...]
    nbytes: dict[str, tuple[int, ...]]  # by category


def curve(trace: Trace, *, num_points: int) -> Curve:
    """The step in at most so many points: of every stretch of operators, the one at which most is live.

    So the peak is always among them. Bytes.
    """
    held, categories = live(trace), by_category(trace)
    chosen = highest(held, num_points)
    return Curve(
        operators=tuple(chosen),
        nbytes={category: tuple(values[at] for at in chosen) for category, values in categories.items()},
    )


def recomputes(trace: Trace) -> tuple[tuple[int, int], ...]:
    """The first and the last operator of every recompute.

    Views between two are within one: hooks make them, outside of the recompute's own mode. What runs outside of all
    modules alone is none: autograd makes its first gradient in the same phase.
    """
    found: list[tuple[int, int]] = []
    is_open = False
    for number, operator in enumerate(trace.operators, start=1):
        if operator.phase == "recompute":
            first = found.pop()[0] if is_open else number
            found.append((first, number))
            is_open = True
        elif operator.moved_bytes:
            is_open = False
    operators = trace.operators
    return tuple((first, last) for first, last in found if any(one.module for one in operators[first - 1 : last]))
