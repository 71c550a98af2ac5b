"""The child of a hollow device, whose tensors have no values: what a model asks of them is answered as it is known."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from unittest import mock

from profiler import worker


def run_trial(request: str, channel: int) -> None:
    """As `profiler.worker.run_trial`."""
    with whole_sequences():
        worker.run_trial(request, channel)


def whole_sequences() -> Any:
    """Positions that count up are of one sequence each, which transformers reads from their values."""
    try:
        from transformers import masking_utils
    except ImportError:
        return nullcontext()
    find = masking_utils.find_packed_sequence_indices

    def found(positions: Any) -> None:
        find(positions)

    return mock.patch.object(masking_utils, "find_packed_sequence_indices", found)
