"""An operator's call as one word: the same where the same kernel does the same work. Knows nothing of meters."""

from __future__ import annotations

from typing import Any

import torch


def call_signature(operator: Any, arguments: Any, keywords: Any) -> str:
    """Name, kinds, shapes and strides of tensors, and all other arguments: `aten.mm(f32[2, 3], f32[3, 4])`."""
    words = [_word(one) for one in arguments] + [f"{key}={_word(one)}" for key, one in (keywords or {}).items()]
    return f"{operator_name(operator)}({', '.join(words)})"


def operator_name(operator: Any) -> str:
    """The operator with its overload, but for the default one: `aten.add.Tensor`, `aten.mm`."""
    return str(operator).removesuffix(".default")


def _word(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        strides = "" if value.is_contiguous() else f" by {list(value.stride())}"
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{strides}"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_word(one) for one in value)}]"
    return str(value)
