"""What a stage takes: plain data."""

from __future__ import annotations

import msgspec


class Seconds(msgspec.Struct, frozen=True, kw_only=True):
    """Of one stage."""

    forward: float
    backward: float
    early_stop: float  # of a recompute, which ends when all that is saved is there
    options: dict[str, tuple[float, float]]  # forward and backward under each save option


NOTHING = Seconds(forward=0.0, backward=0.0, early_stop=0.0, options={})
