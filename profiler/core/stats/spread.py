"""How far samples are apart: knows nothing of what they are samples of."""

from __future__ import annotations

from functools import lru_cache
from statistics import quantiles


@lru_cache(maxsize=64)  # a row and what is doubted of it ask for the same
def spread(samples: tuple[float, ...]) -> float | None:
    """Half the interquartile range over the median; None for fewer than two samples."""
    if len(samples) < 2:
        return None
    low, middle, high = quantiles(samples, n=4, method="inclusive")
    return (high - low) / 2 / middle if middle else None
