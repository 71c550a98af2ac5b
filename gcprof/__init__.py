"""gcprof from Python: `import gcprof; print(gcprof.explain(model, batch, loss=criterion, optimizer=optimizer))`.

The functions are those of `profiler`, loaded on first use: explain, timeline, predict, measure, plan, fit, apply,
watch, block and load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import profiler
from profiler import __version__

if TYPE_CHECKING:
    from profiler import apply, block, explain, fit, load, measure, plan, predict, timeline, watch

__all__ = ["__version__", "apply", "block", "explain", "fit", "load", "measure", "plan", "predict", "timeline", "watch"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(profiler, name)
    raise AttributeError(f"module 'gcprof' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
