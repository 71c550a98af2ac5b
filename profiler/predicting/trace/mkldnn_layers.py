"""Sizes the workspace that a oneDNN recurrent layer saves for its backward, by running oneDNN, which alone knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch.utils._mode_utils import no_dispatch

from profiler.predicting.trace.fake_tensors import FakeTensors

LAYER = torch.ops.aten.mkldnn_rnn_layer.default  # an LSTM on the CPU: aten/src/ATen/native/mkldnn/RNN.cpp
Shape = tuple[tuple[int, ...], torch.dtype]


@contextmanager
def kept_by_layers() -> Iterator[None]:
    """Have each layer return its workspace, which PyTorch's own fake result leaves out."""
    with mock.patch.object(FakeTensors, "changes", {LAYER: _with_workspace}):
        yield


def _with_workspace(out: Any, arguments: Any) -> Any:
    words = tuple(_word(argument) for argument in arguments)
    with no_dispatch():
        num_bytes = _workspace_bytes(words, torch.is_grad_enabled())
    *results, workspace = out
    return (*results, workspace.new_empty((num_bytes,)))


def _word(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return tuple(argument.shape), argument.dtype
    return tuple(argument) if isinstance(argument, list) else argument


@cache
def _workspace_bytes(words: tuple[Any, ...], is_training: bool) -> int:
    """Return the workspace bytes of one layer, run on zeros of these shapes."""
    arguments = [torch.zeros(word[0], dtype=word[1]) if _is_tensor(word) else word for word in words]
    with torch.set_grad_enabled(is_training):  # without gradients there is no workspace
        workspace: torch.Tensor | None = LAYER(*arguments)[3]
    return 0 if workspace is None else workspace.numel()


def _is_tensor(word: Any) -> bool:
    return isinstance(word, tuple) and len(word) == 2 and isinstance(word[1], torch.dtype)
