"""gcprof: the memory-time trade-off of gradient checkpointing, measured.

`profiler.apply(module, "segments:k=4")` changes a module in place; `profiler.measure(build, "segments:k=4")` measures.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "apply", "measure"]


def __getattr__(name: str) -> Any:
    if name in ("apply", "measure"):
        return getattr(importlib.import_module("profiler.api"), name)
    raise AttributeError(f"module 'profiler' has no attribute '{name}'")
