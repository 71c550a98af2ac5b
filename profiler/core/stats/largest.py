"""The places of the largest values of a long series, as many as a picture has points. Knows nothing of pictures."""

from __future__ import annotations

from collections.abc import Sequence


def highest(values: Sequence[int], num_points: int) -> list[int]:
    """Of as many stretches, each as long as the others, the place of the largest value; at most one a value."""
    num_points = min(num_points, len(values))
    edges = [len(values) * at // num_points for at in range(num_points + 1)]
    return [max(range(edges[at], edges[at + 1]), key=values.__getitem__) for at in range(num_points)]
