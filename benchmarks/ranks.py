"""Llama-70B over 64 and 4096 ranks of FSDP2, without checkpointing and with all of it: seconds, and static bytes.

Static bytes are held against the arithmetic of sharding; it fails where they differ. `just bench-ranks`.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator

from profiler.core.case import Case, Choice, Trial
from profiler.core.units import bytes_text
from profiler.predicting.prediction import predict

RANKS, STRATEGIES = (64, 4096), ("none", "all")
WIDTH, WIDE, LAYERS, HEADS, KEY_HEADS, VOCABULARY = 8192, 28_672, 80, 64, 8, 32_000
ITEM, GRANULE = 2, 512  # bytes: bf16; what CUDA's allocator rounds up to


def main() -> int:
    """Predict each, one after the other."""
    began, wrong = time.monotonic(), 0
    for ranks in RANKS:
        expected = static_bytes(ranks)
        for strategy in STRATEGIES:
            seconds = time.process_time()
            found = predict(Trial(case=_case(ranks, strategy))).readings
            static = found.static_bytes or {}
            counted = {name: static[name] for name in expected}
            wrong += counted != expected
            print(
                f"{ranks:>5} ranks {strategy:>5}: peak {bytes_text(found.peak_bytes)}, "
                f"static {bytes_text(sum(counted.values()))}, "
                f"{'as' if counted == expected else 'NOT as'} the arithmetic of sharding; "
                f"{time.process_time() - seconds:.1f} processor seconds"
            )
    print(f"in all {time.process_time():.1f} processor seconds, {time.monotonic() - began:.1f} s on the clock")
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
        batch_size=1, device="fake:h100", precision="bf16", parallel=Choice("fsdp2"), ranks=ranks,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
