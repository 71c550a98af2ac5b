"""Models whose blocks depend on what is around their call, which a recompute in the backward does not find again."""

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call


class Base(nn.Module):
    def __init__(self, depth=2, width=8):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth))

    def forward(self, value):
        for block in self.blocks:
            value = block(value)
        return value


class Fast(nn.Module):
    """One inner step, as in MAML: the blocks are called with weights that are not their own."""

    def __init__(self):
        super().__init__()
        self.base = Base()

    def forward(self, value):
        weights = dict(self.base.named_parameters())
        loss = functional_call(self.base, weights, (value,)).square().mean()
        gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        fast = {name: weight - 0.5 * change for (name, weight), change in zip(weights.items(), gradients, strict=True)}
        return functional_call(self.base, fast, (value,)).square().mean()


def fast():
    return Fast(), (torch.randn(4, 8),)


class Dual(Base):
    """A derivative in forward mode, which ends with its level."""

    def forward(self, value):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(value, torch.ones_like(value))
            primal, tangent = forward_ad.unpack_dual(super().forward(dual))
            return primal.square().mean() + tangent.square().mean()


def dual():
    return Dual(), (torch.randn(4, 8),)


class Noisy(nn.Module):
    """Its last layer draws a slope for each element in the forward alone, after all that a recompute needs."""

    def __init__(self):
        super().__init__()
        self.fc, self.slope = nn.Linear(8, 8), nn.RReLU()

    def forward(self, value):
        return self.slope(self.fc(value))


def noisy():
    return nn.Sequential(*(Noisy() for _ in range(3))), (torch.randn(4, 8), torch.randn(4, 8)), nn.functional.mse_loss


class Caching(nn.Module):
    """Adds to what a dict holds that the caller passes on, as a cache of keys does, and works on all of it."""

    def __init__(self, number):
        super().__init__()
        self.fc, self.number = nn.Linear(8, 8), number

    def forward(self, value, cache):
        held = cache.get(self.number)
        keys = value if held is None else torch.cat([held, value])
        cache[self.number] = keys
        return torch.tanh(self.fc(keys))[-len(value) :]


class WithCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Caching(number) for number in range(3))

    def forward(self, value):
        cache = {}
        for block in self.blocks:
            value = block(value, cache)
        return value.mean()


def cached():
    return WithCache(), (torch.randn(4, 8),)
