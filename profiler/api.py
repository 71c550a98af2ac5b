"""gcprof from Python: checkpoint a module by a strategy or a plan, measure, predict, explain, fit, draw and watch."""

from __future__ import annotations

from profiler.workflows.in_process.applying import apply
from profiler.workflows.in_process.planning import fit, plan
from profiler.workflows.in_process.trials import explain, measure, predict, timeline
from profiler.workflows.in_process.watching import watch

__all__ = ["apply", "explain", "fit", "measure", "plan", "predict", "timeline", "watch"]
