"""Raw samples in lines, one for each strategy: places and words. Knows nothing of how they are drawn.

Across, places are percents of a width that is not known here; down, they are pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import quantiles

import msgspec

from profiler.analysis.rows import Row
from profiler.core.units import count_text, second_unit, seconds_text, spread_text
from profiler.views.geometry import Scale, Tick, around
from profiler.views.report.bars import BAR, GAP, NAME_LINE, line_name
from profiler.views.tables.samples import of

MARGIN = 2.0  # percents
AXIS = 24  # pixels


class Strip(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy's samples: a dot each, the median, and the middle half."""

    y: int
    name: str
    text: str
    dots: tuple[tuple[float, float], ...]
    median: float
    low: float  # the middle half begins
    high: float  # and ends


class Strips(msgspec.Struct, frozen=True, kw_only=True):
    """A picture of samples on one scale."""

    height: int
    said: str
    unit: str
    ticks: tuple[Tick, ...]
    strips: tuple[Strip, ...]
    num_left_out: int  # dots that are not drawn; the numbers beside are of all


def strips(rows: Sequence[Row], *, most: int) -> Strips | None:
    """Every sample of the step, up to so many dots a strategy; None where no time was sampled."""
    shown = [row for row in rows if row.outcome == "ok" and not row.case.is_predicted and of(row, "step")]
    if not shown:
        return None
    second, unit = second_unit(one for row in shown for one in of(row, "step"))
    scale = around((one / second for row in shown for one in of(row, "step")), start=MARGIN, end=100 - MARGIN)
    return Strips(
        height=len(shown) * (NAME_LINE + BAR + GAP) + AXIS,
        said="Every sample of the step time of each strategy",
        unit=unit,
        ticks=scale.ticks(),
        strips=tuple(_strip(row, number, scale, second, most) for number, row in enumerate(shown)),
        num_left_out=sum(max(0, len(of(row, "step")) - most) for row in shown),
    )


def _strip(row: Row, number: int, scale: Scale, second: float, most: int) -> Strip:
    samples = of(row, "step")
    low, middle, high = quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else samples * 3
    y = number * (NAME_LINE + BAR + GAP)
    drawn = _thinned(samples, most)
    gap = BAR / max(1, len(drawn) - 1)
    dots = [(scale.at(one / second), round(y + NAME_LINE + gap * index, 1)) for index, one in enumerate(drawn)]
    return Strip(
        y=y,
        name=line_name(row),
        text=f"{seconds_text(middle)} {spread_text(row.step_spread)}, {count_text(len(samples), 'sample')}",
        dots=tuple(dots),
        median=scale.at(middle / second),
        low=scale.at(low / second),
        high=scale.at(high / second),
    )


def _thinned(samples: Sequence[float], most: int) -> list[float]:
    """Evenly, with the smallest and the largest: what is drawn shows the whole range."""
    if len(samples) <= most:
        return list(samples)
    kept = {round(at * (len(samples) - 1) / (most - 3)) for at in range(most - 2)}
    kept |= {samples.index(min(samples)), samples.index(max(samples))}
    return [samples[at] for at in sorted(kept)]
