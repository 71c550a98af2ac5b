"""Optimizers that wrap others: Muon for matrices beside AdamW for the rest, Lookahead, and the state of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch


def wrapped(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """The optimizer, and those that it holds in attributes, lists, tuples and dicts, at any depth, each once."""
    found: dict[int, torch.optim.Optimizer] = {}
    pending: list[Any] = [optimizer]
    while pending:
        part = pending.pop(0)
        if isinstance(part, torch.optim.Optimizer):
            if id(part) not in found:
                found[id(part)] = part
                own = {"state", "param_groups", "defaults"}  # which hold tensors, numbers and words
                pending += [value for name, value in vars(part).items() if name not in own]
        elif isinstance(part, (list, tuple)):
            pending += part
        elif isinstance(part, dict):
            pending += part.values()
    return list(found.values())


def states(optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, Mapping[str, Any]]]:
    """Every parameter that has state with that state, once for each optimizer that keeps some of it."""
    for part in wrapped(optimizer):
        yield from part.state.items()


def state_by_parameter(optimizer: torch.optim.Optimizer) -> dict[torch.Tensor, list[Mapping[str, Any]]]:
    """What is kept of each parameter that has state."""
    kept: dict[torch.Tensor, list[Mapping[str, Any]]] = {}
    for parameter, state in states(optimizer):
        kept.setdefault(parameter, []).append(dict(state))
    return kept
