"""Lever that changes CUDA's allocator, and so what is reserved."""

from __future__ import annotations

import gc
from typing import Any

import torch

from profiler.core.case import Case
from profiler.core.errors import Unsupported
from profiler.core.record import Applied
from profiler.training.workload import Workload

NAME = "expandable-segments"


def expandable_segments(workload: Workload, case: Case) -> tuple[Workload, Applied]:
    """Segments of CUDA's allocator that grow (PYTORCH_ALLOC_CONF), so that other bytes are reserved, mostly fewer.

    Raises Unsupported where there are none: on a CPU, and in an estimate.
    """
    refuse(case)  # before the model is made, `begin` has set it
    return workload, Applied(split="segments grow")


def is_chosen(case: Case) -> bool:
    return any(lever.name == NAME for lever in case.levers or ())


def refuse(case: Case) -> None:
    """Raise Unsupported where segments cannot grow."""
    if case.is_predicted:
        raise Unsupported("an estimate has no reserved bytes, which are what grows: rehearse or measure it")
    if not case.torch_device.startswith("cuda"):
        raise Unsupported("a CPU reserves no segments: expandable-segments is for CUDA")


def begin(case: Case) -> None:
    """Let all segments that are reserved from now on grow, for a model that is not made yet. Raises Unsupported."""
    refuse(case)
    gc.collect()
    torch.cuda.empty_cache()
    set_growing(True)


def set_growing(on: bool) -> None:
    """Set whether segments that are reserved from now on grow."""
    own: Any = torch._C
    name = "_accelerator_setAllocatorSettings"  # since torch 2.9
    (getattr(own, name, None) or torch.cuda.memory._set_allocator_settings)(f"expandable_segments:{on}")
