"""A chain whose blocks count their calls, and a plan for it."""

from __future__ import annotations

import torch
from torch import nn

from profiler.core.plan_file import PlanFile
from tests.chain_models import Counted
from tests.plans import plan_of


def chain(length: int = 4) -> nn.Sequential:
    return nn.Sequential(*[Counted() for _ in range(length)])


def plan(length: int = 4, runs: tuple[list[int], ...] = ([0, 1],)) -> PlanFile:
    return plan_of(chain(length), [str(index) for index in range(length)], runs)


def calls(module: nn.Module) -> list[int]:
    module(torch.ones(2, 3)).sum().backward()
    return [block.calls for block in module.children()]
