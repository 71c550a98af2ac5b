"""Two training steps in plain PyTorch, seeded by hand: the truth that comparisons are held to, without gcprof."""

import random
import sys
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

LEARNING_RATE = 0.01
NOISE = 4.0  # floors: a difference up to this much is noise
REPEATS = 1e-3  # relative: two runs of the same step that differ by more do not repeat themselves

Gradients = dict[str, torch.Tensor | None]
Forward = Callable[[nn.Module, Any], torch.Tensor]


class Step(NamedTuple):
    loss: torch.Tensor
    gradients: Gradients


Steps = tuple[Step, Step]


def two_steps(
    make: Callable[[], Sequence[Any]], forward: Forward | None = None, *, update: Gradients | None = None
) -> Steps:
    """Returns two steps from seeds 0 and 1, with SGD's between them by the gradients of `update`, or its own.

    `make` returns a module, a batch and a loss, if the module's output is none; `forward` stands in for its call.
    """
    _seed_globals(0)
    module, batch, *loss = make()
    steps = []
    for number in (0, 1):
        seed(module, number)
        module.zero_grad()
        output = forward(module, batch) if forward else module(batch)
        result = loss[0](output) if loss else output
        result.backward()
        parameters = dict(module.named_parameters())
        kept = {name: parameter.grad for name, parameter in parameters.items()}
        gradients = {name: None if one is None else one.detach().clone() for name, one in kept.items()}
        steps.append(Step(result.detach(), gradients))
        for name, gradient in (update or gradients).items():
            if gradient is not None:
                parameters[name].data.sub_(LEARNING_RATE * gradient)
    return steps[0], steps[1]


def seed(module: nn.Module, number: int) -> None:
    """Seed the global generators, and those that are attributes of the module or of its file."""
    _seed_globals(number)
    parts = list(module.modules())
    homes = {type(part).__module__ for part in parts if not type(part).__module__.startswith("torch.")}
    for owner in (*parts, *(sys.modules[home] for home in homes)):
        for value in vars(owner).values():
            if isinstance(value, random.Random):
                value.seed(number)
            elif isinstance(value, torch.Generator):
                value.manual_seed(number)
            elif isinstance(value, np.random.Generator):
                value.bit_generator.state = type(value.bit_generator)(number).state


def chain(blocks: str = "", *, count: int | None = None, **options: Any) -> Forward:
    """A forward through the children of `blocks`, the first `count` of them (all) under checkpoints by hand."""

    def forward(module: nn.Module, value: Any) -> torch.Tensor:
        for index, block in enumerate(module.get_submodule(blocks).children()):
            value = under(block, value, **options) if count is None or index < count else block(value, **options)
        return value

    return forward


def under(block: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """The block under PyTorch's checkpoint, which is not reentrant."""
    return checkpoint(block, *arguments, use_reentrant=False, **keywords)


def apart(first: Steps, second: Steps) -> float:
    """Returns the largest relative difference of gradients and loss: of the first steps, or of the second ones."""
    return next((amount for pair in zip(first, second, strict=True) if (amount := step_apart(*pair))), 0.0)


def missing(first: Steps, second: Steps) -> list[str]:
    """Returns the parameters that have a gradient in the first steps and none in the second."""
    pairs = [(mine.gradients, theirs.gradients) for mine, theirs in zip(first, second, strict=True)]
    return [name for mine, theirs in pairs for name in mine if mine[name] is not None and theirs[name] is None]


def without_gradient(module: nn.Module, step: Step) -> list[str]:
    """Returns the parameters that train and got no gradient."""
    trains = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    return [name for name, gradient in step.gradients.items() if gradient is None and name in trains]


def judged(plain: Steps, again: Steps, other: Steps) -> str:
    """What two plain runs and another one say of the other's gradients, in gcprof's words."""
    if missing(plain, other):
        return "missing"
    floor = apart(plain, again)
    if floor > REPEATS:
        return "not verifiable"
    amount = apart(plain, other)
    if not amount:
        return "bit-equal"
    return "within noise" if amount <= NOISE * floor else "differ"


def step_apart(first: Step, second: Step) -> float:
    """Returns the largest relative difference of two steps' gradients and losses."""
    pairs = [(gradient, second.gradients[name]) for name, gradient in first.gradients.items()]
    return max(_difference(*pair) for pair in (*pairs, (first.loss, second.loss)))


def _difference(first: torch.Tensor | None, second: torch.Tensor | None) -> float:
    if first is None or second is None:
        return 0.0 if first is second else 2.0
    if not first.numel():
        return 0.0
    scale = max(float(first.abs().max()), float(second.abs().max()))
    amount = float((first.double() - second.double()).abs().max())
    if not isfinite(amount):
        return 0.0 if torch.allclose(first, second, rtol=0, atol=0, equal_nan=True) else 2.0
    return amount / scale if amount else 0.0


def _seed_globals(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)
