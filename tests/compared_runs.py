"""Runs of two devices to compare."""

from collections.abc import Sequence
from typing import Any

import msgspec

from profiler.analysis.comparison import Comparison, compare_sides
from profiler.analysis.pairing import ALIGN, read_sides
from profiler.core.record import Environment, Record
from tests import make
from tests.make import MIB

T4 = Environment(
    gcprof="0.1.0", python="3.11.7", system="Linux", torch="2.15.0", device_name="Tesla T4", device_bytes=1000 * MIB
)
H100 = msgspec.structs.replace(T4, device_name="NVIDIA H100 80GB HBM3", device_bytes=80 * 1000 * MIB)
STEADY = (0.100, 0.101, 0.099, 0.100, 0.102)


def record(strategy: str = "none", *, slower: float = 1.0, **fields: Any) -> Record:
    """A record with steps of a tenth of a second."""
    seconds = tuple(second * slower for second in STEADY)
    return make.record(strategy, **{"seconds": seconds, "environment": T4, **fields})


def compare_runs(
    runs: list[tuple[str, Any]], *, align: Sequence[str] = ALIGN, allowed: Sequence[str] = ()
) -> Comparison:
    align = [name for name in align if name not in allowed]
    return compare_sides(read_sides(runs, align=align), align=align, allowed=allowed)


def against(first: list[Record], second: list[Record], **options: Any) -> Comparison:
    return compare_runs([("one", first), ("two", second)], **options)
