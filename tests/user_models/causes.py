"""Models whose checkpoints fail, each for one cause: a cache, a call, an input that is written over, a cast, a ctx."""

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import profiler


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)


class Overwriting(Block):
    """Begins with a write over its input, or over a copy of that."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x):
        return self.layer(torch.tanh(x * 0.5 if self.way == "copy" else x.mul_(0.5)))


class Cache:
    """Keys of the calls before, as a decoder's cache keeps them."""

    def __init__(self) -> None:
        self.keys = []


class Cached(Block):
    """Attends to what its earlier calls have left in the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache()

    def forward(self, x):
        self.cache.keys.append(self.layer(x).detach())
        return torch.tanh(self.layer(x)) @ torch.cat(self.cache.keys).T @ torch.cat(self.cache.keys)


class Tied(Block):
    """Uses its weight twice: autocast casts it once, and keeps the result until it is left."""

    def forward(self, x):
        return torch.tanh(self.layer(torch.tanh(self.layer(x))))


class Shared(nn.Module):
    """Its blocks are one layer: the first has cast its weight for all."""

    def __init__(self, autocast: str) -> None:
        super().__init__()
        if autocast:
            own = torch.autocast("cpu", torch.bfloat16, cache_enabled=autocast == "cached")
            self.forward = own(self.forward)
        layer = Tied()
        self.first = layer.layer
        self.layers = nn.ModuleList([layer, Tied()])

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x


class Square(torch.autograd.Function):
    """x * x, with x as a plain attribute of ctx."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.x * gradient


class Squaring(Block):
    def forward(self, x):
        return torch.tanh(Square.apply(self.layer(x)))


class Once(Block):
    """Raises where it is called a second time before the backward has come to its end."""

    def __init__(self, number: int, seen: set) -> None:
        super().__init__()
        self.number, self.seen = number, seen

    def forward(self, x):
        if self.number in self.seen:
            raise ValueError("a second call")
        self.seen.add(self.number)
        return torch.tanh(self.layer(x))


class Freezing(Block):
    """Freezes its weight once it has been called so often."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after, self.calls = after, 0

    def forward(self, x):
        self.calls += 1
        out = torch.tanh(self.layer(x))
        if self.calls == self.after:
            self.layer.weight.requires_grad_(False)
        return out


class Whole(nn.Module):
    """All of it under one checkpoint."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(2)))
        self.way = way

    def forward(self, x):
        return checkpoint(self.layers, x.requires_grad_(self.way == "input"), use_reentrant=self.way != "plain")


class Squashed(nn.Module):
    """A layer with a weight that is made anew in every call: what that saves depends on whether the weight trains."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        return x @ torch.tanh(self.weight.flatten()).view(8, 8)


class Skeleton(nn.Module):
    """One frozen layer, which every call gives the weights of another; by a marked function, or one that is not."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(8, 8) for _ in range(3))
        self.layer = Squashed().requires_grad_(False)
        self.call = profiler.block(self.layer_of) if way == "marked" else self.layer_of

    def layer_of(self, x, weight):
        return functional_call(self.layer, {"weight": weight}, (x,))

    def forward(self, x):
        for weight in self.weights:
            x = self.call(x, weight)
        return x


def once():
    seen = set()
    blocks = nn.Sequential(nn.Linear(8, 8), *(Once(number, seen) for number in range(2)))
    blocks[0].weight.register_post_accumulate_grad_hook(lambda parameter: seen.clear())
    return blocks


MODELS = {  # by kind; some go another way
    "overwriting": lambda way: nn.Sequential(nn.Linear(8, 8), Overwriting(way), Overwriting(way)),
    "cached": lambda way: nn.Sequential(Cached(), Cached()),
    "squaring": lambda way: nn.Sequential(*(Squaring() for _ in range(4))),
    "shared": Shared,
    "once": lambda way: once(),
    "freezing": lambda way: nn.Sequential(Freezing(int(way)), Freezing(int(way))),
    "whole": Whole,
    "skeleton": Skeleton,
}


def make(kind: str, way: str = "", batch_size: int = 4):
    return MODELS[kind](way), torch.randn(batch_size, 8), lambda out: out.float().square().sum()
