"""CUDA graphs: a replay is a phase, and as many steps as were captured in its graph; what is captured is none yet."""

from __future__ import annotations

import weakref
from functools import wraps
from typing import Any

import torch


def begin(watch: Any) -> None:
    """Have the watch know of captures and replays, until the process ends."""
    graph: Any = torch.cuda.CUDAGraph
    steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # captured in each graph
    open_: list[Any] = []  # the graph that is captured
    count_step, begins, ends = watch._count_step, graph.capture_begin, graph.capture_end
    replays = watch._around(graph.replay, "graph replay", None)

    def count() -> None:
        if open_:
            steps[open_[-1]] = steps.get(open_[-1], 0) + 1
        else:
            count_step()

    @wraps(begins)
    def capture_begin(self: Any, *words: Any, **keywords: Any) -> Any:
        open_[:] = [self]
        return begins(self, *words, **keywords)

    @wraps(ends)
    def capture_end(self: Any) -> Any:
        open_.clear()
        return ends(self)

    @wraps(graph.replay)
    def replay(self: Any) -> Any:
        result = replays(self)
        for _ in range(steps.get(self, 0)):
            count_step()
        return result

    watch._count_step = count
    graph.capture_begin, graph.capture_end, graph.replay = capture_begin, capture_end, replay
