"""Reads the bytes that custom autograd Functions keep as plain attributes of their ctx, which no checkpoint frees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from profiler.training.workload import Workload, bytes_by_storage, tensors


def kept_on_ctx(loss: torch.Tensor, workload: Workload) -> dict[str, int]:
    """Return the bytes of tensors on the ctx of each class of Function in the graph of a loss, the largest first.

    Tensors saved by `save_for_backward` do not count, nor do parameters, buffers, the batch, and what PyTorch's own
    Functions keep. A storage counts for the first class that has it.
    """
    module = workload.module
    resident = bytes_by_storage([*module.parameters(), *module.buffers(), *tensors(workload.batch)])
    seen = set(resident)
    found: dict[str, int] = {}
    for node in _nodes(loss):
        function = getattr(type(node), "_forward_cls", None)
        if function is None or function.__module__.startswith("torch."):
            continue
        own = bytes_by_storage(tensors(dict(getattr(node, "__dict__", {}))))
        nbytes = sum(size for storage, size in own.items() if storage not in seen)
        seen |= own.keys()
        found[function.__name__] = found.get(function.__name__, 0) + nbytes
    return {name: found[name] for name in sorted(found, key=lambda name: -found[name]) if found[name]}


def _nodes(loss: torch.Tensor) -> Iterator[Any]:
    """Yield every node of the autograd graph of a tensor."""
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [below for below, _ in node.next_functions]
            yield node
