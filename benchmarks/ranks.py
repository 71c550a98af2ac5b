"""Llama-70B over 64 and 4096 ranks of FSDP2, rehearsed without checkpointing and with all of it: seconds and bytes.

Static bytes are held against the arithmetic of sharding; it fails where they differ. `just bench-ranks`.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from itertools import product

from profiler.core.case import Case, Choice, Trial
from profiler.core.devices import Device
from profiler.core.units import GIB, bytes_text
from profiler.engines.local import Local

RANKS, STRATEGIES = (64, 4096), ("none", "all")
WIDTH, WIDE, LAYERS, HEADS, KEY_HEADS, VOCABULARY = 8192, 28_672, 80, 64, 8, 32_000
ITEM, GRANULE = 2, 512  # bytes: bf16; what CUDA's allocator rounds up to
ROOM = 512 * GIB  # without checkpointing the step does not fit into an H100


def main() -> int:
    """Rehearse each, one after the other."""
    wrong = 0
    with Local(rehearses=True) as engine:
        for ranks, strategy in product(RANKS, STRATEGIES):
            began = time.monotonic()
            (record,) = engine.run([Trial(case=_case(ranks, strategy), passes=("flops", "memory"))])
            assert record.outcome == "ok", record.detail
            expected, static = static_bytes(ranks), record.readings.static_bytes or {}
            counted = {name: static[name] for name in expected}
            wrong += counted != expected
            print(
                f"{ranks:>5} ranks {strategy:>5}: peak {bytes_text(record.readings.peak_bytes)}, "
                f"static {bytes_text(sum(counted.values()))}, "
                f"{'as' if counted == expected else 'NOT as'} the arithmetic of sharding; "
                f"{time.monotonic() - began:.1f} s"
            )
            if counted != expected:
                print(f"      counted {counted}, expected {expected}")
    return 1 if wrong else 0


def shapes() -> Iterator[list[tuple[int, ...]]]:
    """Of every group that is gathered at once: a layer each, then the embeddings, the last norm and the head."""
    keys = WIDTH // HEADS * KEY_HEADS
    attention = [(WIDTH, WIDTH), (keys, WIDTH), (keys, WIDTH), (WIDTH, WIDTH)]
    for _ in range(LAYERS):
        yield [*attention, (WIDE, WIDTH), (WIDE, WIDTH), (WIDTH, WIDE), (WIDTH,), (WIDTH,)]
    yield [(VOCABULARY, WIDTH), (WIDTH,), (VOCABULARY, WIDTH)]


def static_bytes(ranks: int) -> dict[str, int]:
    """Parameters, gradients and the state of AdamW on the first rank, as the allocator rounds them.

    Each parameter is cut along its first dimension, padded to a multiple of the ranks, and has a storage of its own;
    the gradients of a group share one. AdamW counts its steps on the host.
    """
    groups = [[-(-shape[0] // ranks) * math.prod(shape[1:]) * ITEM for shape in group] for group in shapes()]
    parameters = sum(_rounded(one) for group in groups for one in group)
    gradients = sum(_rounded(sum(group)) for group in groups)
    return {"parameters": parameters, "gradients": gradients, "optimizer": 2 * parameters}


def _rounded(nbytes: int) -> int:
    return -(-nbytes // GRANULE) * GRANULE


def _case(ranks: int, strategy: str) -> Case:
    return Case(
        model=Choice("llama:size=70b,sequence=4096"), strategy=Choice(strategy), optimizer=Choice("adamw"),
        batch_size=1, device=str(Device(prefix="rehearse:", name="h100", bytes=ROOM, context_bytes=0)),
        precision="bf16", parallel=Choice("fsdp2"), ranks=ranks,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
