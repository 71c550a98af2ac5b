"""Reads what autograd saves for gradients that reach no parameter, as in a frozen tower whose input needs one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node

from profiler.training.workload import Workload, bytes_by_storage, restored, tensors, trained

LEAST = 0.01  # of all that is saved: less is not worth a note
SAVED = "_saved_"  # prefix of a node's attributes that return what it saved


def needless_bytes(loss: torch.Tensor, workload: Workload) -> int:
    """Return the bytes that the graph of a loss saves only for nodes that lead to no parameter and no batch tensor.

    Parameters, buffers and the batch do not count. 0 if it is at most the share LEAST of all that is saved.
    """
    wanted = _wanted(workload)
    needless: dict[int, int] = {}
    needed: dict[int, int] = {}
    saved = saved_bytes(loss, workload)
    for node, is_needed in _needs(loss.grad_fn, wanted).items():
        (needed if is_needed else needless).update(saved[node])
    nbytes = sum(size for storage, size in needless.items() if storage not in needed)
    return nbytes if nbytes > LEAST * (nbytes + sum(needed.values())) else 0


def saved_bytes(loss: torch.Tensor, workload: Workload) -> dict[Node, dict[int, int]]:
    """Return what each node of a loss's graph saves, in bytes by storage, without parameters, buffers and the batch."""
    resident = bytes_by_storage(resting(workload))
    saved = {node: bytes_by_storage(list(_saved(node))) for node in _needs(loss.grad_fn, set())}
    return {
        node: {storage: nbytes for storage, nbytes in own.items() if storage not in resident}
        for node, own in saved.items()
    }


def resting(workload: Workload) -> list[torch.Tensor]:
    """Return the parameters, the buffers and the batch, which are there whatever is saved."""
    return [*workload.module.parameters(), *workload.module.buffers(), *tensors(workload.batch)]


def frozen_modules(workload: Workload) -> list[str]:
    """Return the outermost frozen modules whose output has a graph that leads to no wanted gradient."""
    wanted, names = _wanted(workload), dict[str, None]()

    def look(name: str) -> Any:
        def looked(module: nn.Module, inputs: Any, output: Any) -> None:
            ends = [tensor.grad_fn for tensor in tensors(output) if tensor.grad_fn is not None]
            if ends and not any(_needs(end, wanted)[end] for end in ends):
                names.setdefault(name)

        return looked

    handles = [module.register_forward_hook(look(name)) for name, module in _outermost_frozen(workload.module)]
    try:
        with restored(workload.module):
            workload.loss(workload.module, workload.batch)
    finally:
        for handle in handles:
            handle.remove()
    return list(names)


def _wanted(workload: Workload) -> set[int]:
    """Return the ids of all tensors whose gradients may be read: the parameters and the batch."""
    return {id(tensor) for tensor in (*trained(workload).values(), *tensors(workload.batch))}


def _needs(first: Node | None, wanted: set[int]) -> dict[Node, bool]:
    """Return, for every node of a graph, whether a wanted tensor gets its gradient through it."""
    order: list[Node] = []
    waiting, seen = [(first, False)], set()
    while waiting:
        node, is_done = waiting.pop()
        if node is None or (node in seen and not is_done):
            continue
        if is_done:
            order.append(node)
            continue
        seen.add(node)
        waiting += [(node, True), *((below, False) for below, _ in node.next_functions)]
    needs: dict[Node, bool] = {}
    for node in order:  # a node comes after all those below it
        leaf = getattr(node, "variable", None)
        is_wanted = isinstance(leaf, nn.Parameter) or (leaf is not None and id(leaf) in wanted)  # FSDP2 gathers others
        needs[node] = is_wanted or any(needs.get(below, False) for below, _ in node.next_functions if below)
    return needs


def _saved(node: Node) -> Iterator[torch.Tensor]:
    """Yield what a node has saved, as a built-in operator or by `save_for_backward`; for a leaf's node, the leaf."""
    names = [name for name in dir(node) if name.startswith(SAVED)] or ["saved_tensors", "variable"]
    for name in names:
        yield from tensors(getattr(node, name, None))


def _outermost_frozen(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    parameters = list(module.parameters())
    if name and parameters and not any(parameter.requires_grad for parameter in parameters):
        yield name, module
        return
    for key, child in module.named_children():
        yield from _outermost_frozen(child, f"{name}.{key}" if name else key)
