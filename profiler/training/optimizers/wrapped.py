"""All optimizers behind one (wrapped by it, or stepped by hooks in the backward) and the state that they keep."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from profiler.training.gradient_hooks import held_by_hooks
from profiler.training.workload import tensors


def wrapped(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """Return the optimizer and those that it references in attributes, lists, tuples and dicts at any depth, once each.

    Optimizers that hooks of its parameters reference are included. Examples: Muon for matrices with AdamW for the rest,
    Lookahead, and one optimizer per parameter that steps as soon as the gradient arrives.
    """
    found: dict[int, Any] = {}
    pending = deque([optimizer, *held_by_hooks(optimizer)])
    while pending:
        part = pending.popleft()
        if not isinstance(part, (torch.optim.Optimizer, list, tuple, dict)) or id(part) in found:
            continue
        found[id(part)] = part
        inner = _attributes(part) if isinstance(part, torch.optim.Optimizer) else part
        pending += inner.values() if isinstance(inner, dict) else inner
    return [part for part in found.values() if isinstance(part, torch.optim.Optimizer)]


def _attributes(part: torch.optim.Optimizer) -> list[Any]:
    """Return the values of an optimizer's attributes, except those that every optimizer has."""
    of_all = {"state", "param_groups", "defaults"}
    return [value for name, value in vars(part).items() if name not in of_all]


def own_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the tensors in attributes of these optimizers, outside of any state: Lookahead's slow weights."""
    return tensors([_attributes(part) for part in wrapped(optimizer)])


def states(optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, Mapping[str, Any]]]:
    """Yield each parameter that has state with that state, once for each optimizer that keeps some."""
    for part in wrapped(optimizer):
        yield from part.state.items()


def state_by_parameter(optimizer: torch.optim.Optimizer) -> dict[torch.Tensor, list[Mapping[str, Any]]]:
    """Return the states of each parameter that has any, one for each optimizer that keeps some."""
    kept: dict[torch.Tensor, list[Mapping[str, Any]]] = {}
    for parameter, state in states(optimizer):
        kept.setdefault(parameter, []).append(dict(state))
    return kept
