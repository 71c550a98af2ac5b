"""gcprof from Python: checkpoint a module by a strategy or a plan, measure, predict, explain and draw its step."""

from __future__ import annotations

from profiler.api.applying import apply
from profiler.api.explaining import explain, timeline
from profiler.api.planning import plan
from profiler.api.trials import measure, predict

__all__ = ["apply", "explain", "measure", "plan", "predict", "timeline"]
