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

    def note(kind, *values):
        sums = [round(float(value.detach().sum()), 5) for value in values if isinstance(value, torch.Tensor)]
        events.append(f"{kind} {index} {sums} {[type(value).__name__ for value in values]}")

    def before(module, arguments):
        note("before", *arguments)
        return (1.1 * arguments[0], *arguments[1:])

    def before_named(module, arguments, keywords):
        note("before, named", *arguments, *keywords.values())
        return arguments, {name: 0.9 * value for name, value in keywords.items()}

    def after(module, arguments, output):
        note("after", *arguments, output)
        return 1.3 * output

    def after_named(module, arguments, keywords, output):
        note("after, named", *arguments, *keywords.values(), output)

    def always(module, arguments, output):
        note("always", *arguments, output)

    def before_backward(module, gradients):
        note("before backward", *gradients)
        return tuple(0.8 * gradient for gradient in gradients)

    def backward(module, inputs, outputs):
        note("backward", *inputs, *outputs)
        return tuple(None if gradient is None else 1.2 * gradient for gradient in inputs)

    layer.register_forward_pre_hook(before)
    layer.register_forward_pre_hook(before_named, with_kwargs=True)
    layer.register_forward_hook(after)
    layer.register_forward_hook(after_named, with_kwargs=True)
    layer.register_forward_hook(always, always_call=True)
    layer.register_full_backward_pre_hook(before_backward)
    layer.register_full_backward_hook(backward)
