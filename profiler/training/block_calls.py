"""Counts how often each block's forward runs in a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from profiler.training.workload import Workload


def count_calls(workload: Workload, calls: list[int]) -> Callable[[], None]:
    """Count the calls of each block's forward, below any strategy's wrapper; return a function that stops counting."""
    calls[:] = [0] * len(workload.blocks)
    blocks = [workload.block(name) for name in workload.blocks]
    own = [(block, block.__dict__.get("forward")) for block in blocks]
    for index, block in enumerate(blocks):
        block.forward = _counting(block.forward, calls, index)

    def uncount() -> None:
        for block, forward in reversed(own):
            if forward is None:
                block.__dict__.pop("forward", None)
            else:
                block.forward = forward

    return uncount


def _counting(forward: Callable[..., Any], calls: list[int], index: int) -> Callable[..., Any]:
    def counted(*arguments: Any, **keywords: Any) -> Any:
        calls[index] += 1
        return forward(*arguments, **keywords)

    return counted
