"""Recurrent networks, and the CTC loss that often follows them, by PyTorch's own CUDA kernels instead of cuDNN's.

The hollow cuDNN has neither. What PyTorch's own take of memory is another figure, so the first use leaves a note.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn

NOTE = "recurrent networks ran by PyTorch's own kernels, not by cuDNN's, which take other memory"
NOTE_CTC = "the CTC loss ran by PyTorch's own kernel: cuDNN's, which takes other memory, is for lengths on the CPU"


def begin(note: Callable[[str], None]) -> None:
    """Hide cuDNN from `torch.nn`'s recurrent modules and from its CTC loss."""
    kinds: tuple[Any, ...] = (nn.RNN, nn.LSTM, nn.GRU)
    for kind in kinds:
        kind.forward = _without_cudnn(kind.forward, note, NOTE)
    base: Any = nn.RNNBase
    base.flatten_parameters = _without_cudnn(base.flatten_parameters, note, NOTE)
    nn.functional.ctc_loss = _without_cudnn(nn.functional.ctc_loss, note, NOTE_CTC)


def _without_cudnn(plain: Callable[..., Any], note: Callable[[str], None], text: str) -> Callable[..., Any]:
    @wraps(plain)
    def call(*arguments: Any, **keywords: Any) -> Any:
        is_enabled = torch._C._get_cudnn_enabled()
        torch._C._set_cudnn_enabled(False)
        try:
            return plain(*arguments, **keywords)
        finally:
            torch._C._set_cudnn_enabled(is_enabled)
            if is_enabled and torch.cuda.is_initialized():
                note(text)

    return call
