"""gcprof: the memory-time trade-off of gradient checkpointing, measured.

`profiler.apply(module, "segments:k=4")` changes a module in place; `profiler.measure(build, "segments:k=4")` measures;
`profiler.load("last")` reads a run back.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "apply", "load", "measure"]
HOMES = {
    "apply": "profiler.api",
    "measure": "profiler.api",
    "load": "profiler.workflows.stored_run",
}  # imported on first use


def __getattr__(name: str) -> Any:
    if name in HOMES:
        return getattr(importlib.import_module(HOMES[name]), name)
    raise AttributeError(f"module 'profiler' has no attribute '{name}'")
