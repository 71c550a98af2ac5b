"""A script's estimated time of a step: its FLOPs as PyTorch counts them on the CPU, and arithmetic."""

import sys

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from profiler.core import gpu_specs
from profiler.scripts.launch import run
from profiler.scripts.report import Asked, estimated_seconds

BLOCKS = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        blocks = (nn.Sequential(nn.Linear(96, 384), nn.ReLU(), nn.Linear(384, 96)) for _ in range(4))
        self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(96, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)
"""
SCRIPT = """
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.ones(64, 96).cuda()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
RATES = gpu_specs.find("t4")


def flops_of_step():
    """Return the FLOPs of a checkpointed step by PyTorch's counter, on the CPU, with PyTorch's own checkpoints."""
    scope = {}
    exec(BLOCKS, scope)
    model = scope["Model"]()
    x = torch.ones(64, 96)
    with FlopCounterMode(display=False) as counter:
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        model.head(x).square().mean().backward()
    return counter.get_total_flops()


@pytest.mark.slow
def test_flops_of_the_second_step_are_those_that_pytorch_counts(hollow, here):
    (here / "train.py").write_text(f"{BLOCKS}\n{SCRIPT}")
    asked = Asked(words=(sys.executable, "train.py"), gpus=gpu_specs.rehearsed("t4"), strategy="all")

    ended = run(asked, on_line=lambda line: None)

    (lines,) = ended.lines.values()
    (work,) = (line for line in lines if line["kind"] == "work")
    counted = sum(flops * num for _, _, flops, _, num in work["calls"])
    assert counted == flops_of_step()
    assert {kind for _, kind, flops, _, _ in work["calls"] if flops} == {"fp32"}


def test_an_operator_takes_the_longer_of_arithmetic_and_traffic_and_a_launch():
    calls = [["aten.mm", "fp16", 10**12, 1, 2], ["aten.add", "fp32", 0, 10**9, 1], ["c10d.allreduce_", "fp32", 0, 9, 7]]

    seconds, why = estimated_seconds([{"kind": "work", "why": None, "calls": calls}], RATES)

    by_hand = 2 * (10**12 / (0.8 * RATES.flops.fp16) + 3e-6) + 10**9 / (0.8 * RATES.bandwidth) + 3e-6
    assert seconds == pytest.approx(by_hand)
    assert why is None
    assert estimated_seconds([], RATES) == (None, "no second step was made")
