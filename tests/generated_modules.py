"""Modules as users write them, drawn from a seed: mixes of what makes a recompute go wrong, and of what does not."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

WIDTH, BATCH = 8, 6
OWN_CHECKPOINTS: dict[str, dict[str, Any]] = {
    "reentrant": {"use_reentrant": True},
    "not-reentrant": {"use_reentrant": False},
    "lossy": {"use_reentrant": False, "preserve_rng_state": False},
}
UNSEEDED = ("system", "hidden")  # draws that nobody can seed: as the system's are, and those of a generator in a list
GOLDEN = 0.6180339887498949  # its multiples, less their whole parts, are those that come least near to each other
_drawn_from_the_system = count()
# What a block may be, with the chance of each; the rest of the chance is nothing of it.
CHOICES: dict[str, dict[str, float]] = {
    "layer": {"norm": 0.2, "mlp": 0.2},
    "drop": {"trains": 0.3, "eval": 0.1},
    "noise": {
        **dict.fromkeys(("torch", "random", "numpy", "own-python", "own-numpy", "own-torch"), 0.04),
        **dict.fromkeys(UNSEEDED, 0.01),
    },
    "hook": dict.fromkeys(("forward", "before", "backward", "before-backward", "tensor"), 0.06),
    "frozen": {"layer": 0.1, "whole": 0.05},
    "own": {"reentrant": 0.14, "not-reentrant": 0.08, "lossy": 0.08},
    "own_place": {"body": 0.5},
    "in_place": {"relu": 0.15, "add": 0.1, "input": 0.04},
    "eval": {"block": 0.05},
    "branch": {"mean": 0.12, "rows": 0.12, "draw": 0.04},
    "keeps": {"counter": 0.03, "buffer": 0.03, "list": 0.03},
    "weight": {"weight-norm": 0.05, "spectral": 0.03},
    "patched": {"forward": 0.05},
    "detached": {"body": 0.03},
}
LOOPS = {
    "skip": 0.1,
    "sum": 0.1,
    "gate": 0.1,
}  # of the module over its blocks: not each, of each its mean, one more input


class Plan(NamedTuple):
    """What a module is made of."""

    blocks: tuple[dict[str, str], ...]
    shared: str | None  # "weight": the last block's is the first's; "block": the last is the first
    frozen_stem: bool
    loop: str | None

    def __str__(self) -> str:
        blocks = [" ".join(f"{key}={value}" for key, value in block.items()) or "plain" for block in self.blocks]
        shared = f" shared {self.shared}" if self.shared else ""
        return f"[{', '.join(blocks)}]{shared}{' frozen stem' if self.frozen_stem else ''} {self.loop or ''}"


def plan(name: str) -> Plan:
    """The plan that follows from a name."""
    chance = random.Random(name)
    blocks = tuple(
        {key: drawn for key, chances in CHOICES.items() if (drawn := _drawn(chance, chances))}
        for _ in range(chance.randint(2, 5))
    )
    shared = _drawn(chance, {"weight": 0.1, "block": 0.05})
    if shared == "block":
        blocks = (*blocks[:-1], blocks[0])
    return Plan(blocks, shared, chance.random() < 0.35, _drawn(chance, LOOPS))


def make(plan: Plan, *, has_own: bool = True) -> tuple[nn.Module, torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    """A user's factory: the module, its batch and its loss; without its own checkpoints where it is to have none."""
    return Generated(plan, has_own=has_own), torch.randn(BATCH, WIDTH), lambda output: output.square().mean()


class Generated(nn.Module):
    """A stem, blocks and a head."""

    def __init__(self, plan: Plan, *, has_own: bool) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH).requires_grad_(not plan.frozen_stem)
        self.blocks = nn.ModuleList(Block(chosen, has_own=has_own) for chosen in plan.blocks)
        self.head = nn.Linear(WIDTH, 1)
        self.gate = nn.Linear(WIDTH, 1)
        self.loop = plan.loop
        if plan.shared == "block":
            self.blocks[-1] = self.blocks[0]
        elif plan.shared == "weight" and not any("weight" in block for block in plan.blocks):
            self.blocks[-1].layer.weight = self.blocks[0].layer.weight

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.through(values, lambda block, *given: block.own(block, *given) if block.is_whole else block(*given))

    def through(self, values: torch.Tensor, call: Callable[..., torch.Tensor]) -> torch.Tensor:
        """The forward, in which blocks are called by `call`."""
        values = self.stem(values)
        gates = (torch.sigmoid(self.gate(values)),) if self.loop == "gate" else ()
        means = []
        for block in self.blocks:
            if self.loop == "skip" and random.random() < 0.3:
                continue
            values = call(block, values, *gates)
            means.append(values.mean())
        return self.head(values) + (sum(means) if self.loop == "sum" else 0.0)


class Block(nn.Module):
    """A residual block with what was chosen for it."""

    def __init__(self, chosen: dict[str, str], *, has_own: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH) if chosen.get("layer") == "norm" else nn.Identity()
        self.second = nn.Linear(WIDTH, WIDTH) if chosen.get("layer") == "mlp" else nn.Identity()
        self.extra = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.3 if "drop" in chosen else 0.0)
        self.python, self.numpy = random.Random(), np.random.default_rng()
        self.torch = torch.Generator(device="cpu")
        self.hidden = [Apart()]
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.calls, self.seen = 0, [1.0]
        self.noise, self.in_place = chosen.get("noise"), chosen.get("in_place")
        self.branch, self.keeps = chosen.get("branch"), chosen.get("keeps")
        self.options = OWN_CHECKPOINTS.get(chosen.get("own", "")) if has_own else None
        self.is_whole = "own_place" not in chosen
        self.is_detached = "detached" in chosen
        if "weight" in chosen:
            kinds = {"weight-norm": parametrizations.weight_norm, "spectral": parametrizations.spectral_norm}
            kinds[chosen["weight"]](self.layer)
        if chosen.get("drop") == "eval":
            self.drop.eval()
        if "eval" in chosen:
            self.eval()
        if "frozen" in chosen:
            (self if chosen["frozen"] == "whole" else self.layer).requires_grad_(False)
        self.on_tensor = chosen.get("hook") == "tensor"
        _hook(self, chosen.get("hook"))
        if "patched" in chosen:
            theirs = self.forward
            self.forward = lambda *given: 1.1 * theirs(*given)

    def own(self, function: Callable[..., torch.Tensor], *given: torch.Tensor) -> torch.Tensor:
        """The function under the user's own checkpoint, where there is one."""
        return checkpoint(function, *given, **self.options) if self.options else function(*given)

    def forward(self, values: torch.Tensor, gate: torch.Tensor | float = 1.0) -> torch.Tensor:
        if self.in_place == "input":
            values.mul_(1.1)
        changed = gate * (self.body(values) if self.is_whole else self.own(self.body, values))
        if self.on_tensor and changed.requires_grad:
            changed.register_hook(lambda gradient: 0.9 * gradient)
        return values + changed

    def body(self, values: torch.Tensor) -> torch.Tensor:
        values = self.layer(self.norm(values) + self.kept())
        if self.in_place == "relu":
            values = torch.relu_(values)
        elif self.in_place == "add":
            values = values.add_(0.5)
        values = self.drop(self.second(torch.tanh(values.detach() if self.is_detached else values)))
        return self.branched(values) * torch.full((), 0.5 + self.drawn())

    def branched(self, values: torch.Tensor) -> torch.Tensor:
        if self.branch == "rows":
            rows = values.sum(1) > 0
            values = values.clone()
            values[rows] = values[rows] * 0.5
        elif (self.branch == "mean" and float(values.detach().mean()) > 0) or (
            self.branch == "draw" and self.drawn() > 0.5
        ):
            values = torch.tanh(self.extra(values))
        return values

    def kept(self) -> torch.Tensor | float:
        """What hangs on the calls before."""
        if self.keeps == "counter":
            self.calls += 1
            return 0.5 if self.calls > 2 else 0.0
        if self.keeps == "buffer":
            self.mean.mul_(0.5).add_(0.1)
            return self.mean.clone()
        if self.keeps == "list":
            self.seen.append(self.seen[-1] / 2)
            return sum(self.seen) / len(self.seen)
        return 0.0

    def drawn(self) -> float:
        draws = {
            "torch": lambda: torch.rand(()).item(),
            "random": random.random,
            "numpy": np.random.rand,
            "own-python": self.python.random,
            "own-numpy": self.numpy.random,
            "own-torch": lambda: torch.rand((), generator=self.torch).item(),
            "system": far_from_the_last,
            "hidden": self.hidden[0].random,
        }
        return draws[self.noise]() if self.noise else 0.5


class Apart:
    """A generator that is none that is known."""

    def random(self) -> float:
        """A number that nobody has seeded."""
        return far_from_the_last()


def far_from_the_last() -> float:
    """A number below 1 that is another in every call, as `os.urandom` gives, but never by chance nearly that of before.

    Of 20 in a row any two are at least 0.02 apart: two runs of a step that draws one differ by more than rounding.
    """
    return next(_drawn_from_the_system) * GOLDEN % 1


def _hook(block: Block, kind: str | None) -> None:
    if kind == "forward":
        block.register_forward_hook(lambda module, arguments, output: 1.2 * output)
    elif kind == "before":
        block.register_forward_pre_hook(lambda module, arguments: (1.1 * arguments[0], *arguments[1:]))
    elif kind == "backward":
        block.register_full_backward_hook(lambda module, inputs, outputs: _scaled(inputs, 1.3))
    elif kind == "before-backward":
        block.register_full_backward_pre_hook(lambda module, outputs: _scaled(outputs, 0.8))


def _scaled(gradients: tuple[torch.Tensor | None, ...], factor: float) -> tuple[torch.Tensor | None, ...]:
    return tuple(None if gradient is None else factor * gradient for gradient in gradients)


def _drawn(chance: random.Random, chances: dict[str, float]) -> str | None:
    """One of the words by its chance, or nothing."""
    number = chance.random()
    for word, share in chances.items():
        if number < share:
            return word
        number -= share
    return None
