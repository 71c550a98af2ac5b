"""Blocks with every kind of hook, which change what they see, and blocks whose weights are computed at each call."""

import warnings

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.drop = nn.Dropout(0.2)

    def forward(self, x, scale=1.0):
        return self.drop(torch.tanh(self.linear(x) * scale))


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


class Net(nn.Module):
    """A residual-free chain; `scale` is given by name where `named`."""

    def __init__(self, width: int, depth: int, named: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(depth))
        self.named = named

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, scale=0.7) if self.named else layer(x)
        return x


def hooked(batch_size: int = 4, named: bool = True):
    net = Net(8, 4, named)
    net.events = []
    for index, layer in enumerate(net.layers):
        hook(layer, index, net.events)
    return net, torch.randn(batch_size, 8), lambda out: out.square().sum()


def reparametrized(batch_size: int = 4):
    """The second block itself is a layer whose weight is computed; that of others is within them."""
    net = Net(8, 4, False)
    net.layers[0] = parametrizations.weight_norm(nn.Linear(8, 8))
    net.layers[1] = parametrizations.spectral_norm(nn.Linear(8, 8))
    with warnings.catch_warnings(action="ignore"):
        net.layers[2] = nn.utils.weight_norm(nn.Linear(8, 8))
    parametrize.register_parametrization(net.layers[3].linear, "weight", Doubled())
    return net, torch.randn(batch_size, 8), lambda out: out.square().sum()


def hook(layer, index, events):
    """Each kind notes what it is given, and changes what it may."""

    def on(kind, change=lambda *given: None):
        def called(module, *given):
            parts = (
                one.values() if isinstance(one, dict) else one if isinstance(one, tuple) else [one] for one in given
            )
            values = [value for part in parts for value in part]
            sums = [round(float(value.detach().sum()), 5) for value in values if isinstance(value, torch.Tensor)]
            events.append(f"{kind} {index} {sums} {[type(value).__name__ for value in values]}")
            return change(*given)

        return called

    layer.register_forward_pre_hook(on("before", lambda given: (1.1 * given[0], *given[1:])))
    less = on("before, named", lambda given, named: (given, {name: 0.9 * value for name, value in named.items()}))
    layer.register_forward_pre_hook(less, with_kwargs=True)
    layer.register_forward_hook(on("after", lambda given, output: 1.3 * output))
    layer.register_forward_hook(on("after, named"), with_kwargs=True)
    layer.register_forward_hook(on("always"), always_call=True)
    layer.register_full_backward_pre_hook(on("before backward", lambda found: tuple(0.8 * one for one in found)))
    more = on("backward", lambda inputs, _: tuple(None if one is None else 1.2 * one for one in inputs))
    layer.register_full_backward_hook(more)
