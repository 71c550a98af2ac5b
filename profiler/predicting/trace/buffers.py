"""Buffers of CUDA's kernels whose size depends on the GPU's chip: knows nothing of steps."""

from __future__ import annotations

from typing import Any

from profiler.core.gpu_specs import Rates
from profiler.predicting.trace.attention_buffers import attention_bytes
from profiler.predicting.trace.reductions import reduction_bytes
from profiler.predicting.trace.row_buffers import row_bytes
from profiler.predicting.trace.tracer import Hidden


def taking_buffers(hidden: Hidden, known: Rates | None) -> Hidden:
    """`hidden` with the buffers of reductions, attentions and rows on this GPU, where its chip is known."""
    if known is None or known.chip is None:
        return hidden
    chip = known.chip

    def taken(func: Any, args: Any, kwargs: Any) -> int:
        own = reduction_bytes(func, args, kwargs, chip) or attention_bytes(func, args, kwargs, known)
        return hidden(func, args, kwargs) + (own or row_bytes(func, args, kwargs, chip))

    return taken
