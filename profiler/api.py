"""gcprof from Python: checkpoint a module by a strategy or a plan, measure, predict, explain, fit, draw and watch."""

from __future__ import annotations

from profiler.workflows.in_process.in_training import apply, watch
from profiler.workflows.in_process.trials import explain, fit, measure, plan, predict, timeline

__all__ = ["apply", "explain", "fit", "measure", "plan", "predict", "timeline", "watch"]
