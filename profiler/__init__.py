"""gcprof: the memory-time trade-off of gradient checkpointing, measured. `import gcprof` has the same functions.

`gcprof.explain(module, batch)` says what holds the peak of a training step, on a GPU that need not be there, and
`gcprof.timeline(module, batch)` draws it; `gcprof.predict(module, batch, "all")` and `gcprof.measure(module, batch,
"all")` give the numbers of one strategy; `gcprof.plan(module, batch, "8GiB")` finds where to checkpoint, and
`gcprof.apply(module, plan)` does it in place; `gcprof.fit(module, batch, "8GiB")` tries every other lever too; `with
gcprof.watch() as watch:` follows a loop of your own; `gcprof.load("last")` reads a run back.
"""

from __future__ import annotations

import importlib
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from profiler.training.called_blocks import block
    from profiler.workflows.in_process.in_training import apply, watch
    from profiler.workflows.in_process.results import load
    from profiler.workflows.in_process.trials import explain, fit, measure, plan, predict, timeline

__version__ = "0.1.0"
__all__ = ["__version__", "apply", "block", "explain", "fit", "load", "measure", "plan", "predict", "timeline", "watch"]
_HOMES = {  # imported on first use; all others are of the trials, which import torch and take seconds
    "apply": "profiler.workflows.in_process.in_training",
    "block": "profiler.training.called_blocks",
    "load": "profiler.workflows.in_process.results",
    "watch": "profiler.workflows.in_process.in_training",
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        state = random.getstate()  # rich draws from it when it is imported
        try:
            return getattr(importlib.import_module(_HOMES.get(name, "profiler.workflows.in_process.trials")), name)
        finally:
            random.setstate(state)
    raise AttributeError(f"module 'profiler' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
