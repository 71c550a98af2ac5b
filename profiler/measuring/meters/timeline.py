"""What was live over a step -> few points of it, to be stored: knows nothing of who watched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from profiler.core.record import Timeline
from profiler.core.stats import highest

NUM_POINTS = 96  # a page draws several timelines beside each other, and a record is one line


def timeline(nbytes: Mapping[str, Sequence[int]], phases: Iterable[tuple[str, int]], **at_peak: Any) -> Timeline:
    """Series of the same length, one for each category, thinned where their sum is not the largest of its stretch.

    `phases` are in order, each with the place of its first value. What `at_peak` says is stored as it is. Bytes.
    """
    places = highest([sum(values) for values in zip(*nbytes.values(), strict=True)], NUM_POINTS)
    firsts = [(phase, sum(place < first for place in places)) for phase, first in phases]
    ends = [*(first for _, first in firsts[1:]), len(places)]
    return Timeline(
        phases=tuple(one for one, end in zip(firsts, ends, strict=True) if one[1] < end),  # some have none
        nbytes={name: tuple(values[place] for place in places) for name, values in nbytes.items() if any(values)},
        **at_peak,
    )
