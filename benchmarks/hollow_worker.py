"""The child of a hollow device, whose tensors have no values: what a model asks of them is answered as it is known."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch

from profiler.engines import worker


def run_trial(request: str, channel: int) -> None:
    """As `profiler.engines.worker.run_trial`."""
    with whole_sequences():
        worker.run_trial(request, channel)


def whole_sequences() -> ExitStack:
    """Positions that count up are of one sequence each, and masks of ones mask nothing.

    Transformers reads both from their values.
    """
    stack = ExitStack()
    every = torch.Tensor.all

    def passed(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        out = every(tensor, *args, **kwargs)
        return out if args or kwargs else _passed(out)

    stack.enter_context(mock.patch.object(torch.Tensor, "all", passed))
    try:
        from transformers import masking_utils
    except ImportError:
        return stack
    count = getattr(masking_utils, "fast_all", None)
    if count is not None:
        stack.enter_context(mock.patch.object(masking_utils, "fast_all", lambda tensor: _passed(count(tensor))))
    find = masking_utils.find_packed_sequence_indices

    def found(positions: Any) -> None:
        find(positions)

    stack.enter_context(mock.patch.object(masking_utils, "find_packed_sequence_indices", found))
    return stack


def _passed(test: torch.Tensor) -> torch.Tensor:
    return torch.ones((), dtype=torch.bool, device="cpu")
