"""Hooks that hold each layer's output in an object which also holds itself: only Python's collector frees it."""

import torch
from torch import nn


class Held:
    def __init__(self, output, *, is_cyclic: bool) -> None:
        self.output = output
        self.owner = self if is_cyclic else None


def make(batch_size: int = 64, width: int = 32, depth: int = 4, is_cyclic: bool = True):
    def hold(layer, inputs, output):
        Held(output.detach().clone(), is_cyclic=is_cyclic)

    net = nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))
    for layer in net:
        layer.register_forward_hook(hold)
    return net, torch.randn(batch_size, width), lambda out: out.sum()
