"""Models whose forward changes what their blocks compute with: parameters lent."""

import torch
from torch import nn
from torch.func import functional_call

import profiler


class Squashed(nn.Module):
    """A layer with a weight that is made anew in every call: what that saves depends on whether the weight trains."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        return x @ torch.tanh(self.weight.flatten()).view(8, 8)


class Skeleton(nn.Module):
    """One frozen layer, which every call gives the weights of another; by a marked function, or one that is not."""

    def __init__(self, is_marked: bool) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(8, 8) for _ in range(3))
        self.layer = Squashed().requires_grad_(False)
        self.call = profiler.block(self.layer_of) if is_marked else self.layer_of

    def layer_of(self, x, weight):
        return functional_call(self.layer, {"weight": weight}, (x,))

    def forward(self, x):
        for weight in self.weights:
            x = self.call(x, weight)
        return x


def skeleton(batch_size: int = 4, is_marked: bool = False):
    return Skeleton(is_marked), torch.randn(batch_size, 8), lambda out: out.square().sum()
