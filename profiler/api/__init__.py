"""gcprof from Python: checkpoint a module by a strategy or a plan, measure its step, predict it, plan it."""

from __future__ import annotations

from profiler.api.applying import apply
from profiler.api.planning import plan
from profiler.api.trials import measure, predict

__all__ = ["apply", "measure", "plan", "predict"]
