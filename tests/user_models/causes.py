"""Models whose checkpoints fail, each for one cause: a cache, a counter, an input that is written over, a cast, a ctx."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Cache:
    """Keys of the calls before, as a decoder's cache keeps them."""

    def __init__(self) -> None:
        self.keys = []


class Overwriting(nn.Module):
    """Begins with a write over its input, or over a copy of that."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.in_place = in_place

    def forward(self, x):
        return self.layer(torch.tanh(x.mul_(0.5) if self.in_place else x * 0.5))


class Cached(nn.Module):
    """Attends to what its earlier calls have left in the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.cache = Cache()

    def forward(self, x):
        self.cache.keys.append(self.layer(x).detach())
        return torch.tanh(self.layer(x)) @ torch.cat(self.cache.keys).T @ torch.cat(self.cache.keys)


class Tied(nn.Module):
    """Uses its weight twice: autocast casts it once, and keeps the result until it is left."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return torch.tanh(self.layer(torch.tanh(self.layer(x))))


class Shared(nn.Module):
    """Its blocks are one layer: the first has cast its weight for all."""

    def __init__(self) -> None:
        super().__init__()
        layer = Tied()
        self.first = layer.layer
        self.layers = nn.ModuleList([layer, Tied()])

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x


def _chain(kind, batch_size):
    return (
        nn.Sequential(*(kind() for _ in range(2))),
        torch.randn(batch_size, 8),
        lambda out: out.float().square().sum(),
    )


def overwriting(batch_size: int = 4, in_place: bool = True):
    blocks = nn.Sequential(nn.Linear(8, 8), *(Overwriting(in_place) for _ in range(2)))
    return blocks, torch.randn(batch_size, 8), lambda out: out.square().sum()


def cached(batch_size: int = 4):
    return _chain(Cached, batch_size)


def shared(batch_size: int = 4):
    return Shared(), torch.randn(batch_size, 8), lambda out: out.float().square().sum()


@dataclass
class State:
    """What blocks pass on."""

    hidden: torch.Tensor
    scale: float = 1.0


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, state):
        return State(torch.tanh(self.layer(state.hidden)) * state.scale)


class Passing(nn.Module):
    """Its blocks pass a dataclass on."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Stateful() for _ in range(4)])

    def forward(self, x):
        state = State(x)
        for layer in self.layers:
            state = layer(state)
        return state.hidden


class Square(torch.autograd.Function):
    """x * x, with x on ctx: a plain attribute, or saved as autograd wants it."""

    @staticmethod
    def forward(ctx, x, as_attribute):
        if as_attribute:
            ctx.x = x
        else:
            ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.x if hasattr(ctx, "x") else ctx.saved_tensors[0]
        return 2 * x * gradient, None


class Squaring(nn.Module):
    def __init__(self, as_attribute: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.as_attribute = as_attribute

    def forward(self, x):
        return torch.tanh(Square.apply(self.layer(x), self.as_attribute))


class Twice(nn.Module):
    """Calls a reentrant checkpoint around the same layer twice."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(8, 8), nn.Linear(8, 8)
        self.reentrant = reentrant

    def forward(self, x):
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=self.reentrant)
        return x


def twice(batch_size: int = 4, reentrant: bool = True):
    return Twice(reentrant), torch.randn(batch_size, 8), lambda out: out.square().sum()


def passing(batch_size: int = 4):
    return Passing(), torch.randn(batch_size, 8), lambda out: out.square().sum()


def squaring(batch_size: int = 4, as_attribute: bool = True):
    blocks = nn.Sequential(*(Squaring(as_attribute) for _ in range(4)))
    return blocks, torch.randn(batch_size, 8), lambda out: out.square().sum()


def own_autocast(batch_size: int = 4, cache: bool = True):
    model, x, loss = shared(batch_size)
    forward = model.forward

    def under_autocast(x):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache):
            return forward(x)

    model.forward = under_autocast
    return model, x, loss


class Once(nn.Module):
    """Raises where it is called a second time before the backward has come to its end."""

    def __init__(self, number: int, seen: set) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.number, self.seen = number, seen

    def forward(self, x):
        if self.number in self.seen:
            raise ValueError("a second call")
        self.seen.add(self.number)
        return torch.tanh(self.layer(x))


def once(batch_size: int = 4):
    seen = set()
    blocks = nn.Sequential(nn.Linear(8, 8), *(Once(number, seen) for number in range(2)))
    blocks[0].weight.register_post_accumulate_grad_hook(lambda parameter: seen.clear())
    return blocks, torch.randn(batch_size, 8), lambda out: out.square().sum()


class Freezing(nn.Module):
    """Freezes its weight once it has been called so often."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.after = after
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        out = torch.tanh(self.layer(x))
        if self.calls == self.after:
            self.layer.weight.requires_grad_(False)
        return out


def freezing(batch_size: int = 4, after: int = 1):
    blocks = nn.Sequential(*(Freezing(after) for _ in range(2)))
    return blocks, torch.randn(batch_size, 8), lambda out: out.square().sum()


class Whole(nn.Module):
    """All of it under one checkpoint, or nothing of it in the graph of the loss."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(2)))
        self.way = way

    def forward(self, x):
        if self.way == "frozen":
            self.requires_grad_(False)
        if self.way == "detached":
            return self.layers(x).detach()
        return checkpoint(self.layers, x.requires_grad_(self.way == "input"), use_reentrant=self.way != "plain")


def whole(batch_size: int = 4, way: str = "reentrant"):
    return Whole(way).requires_grad_(way != "untrained"), torch.randn(batch_size, 8), lambda out: out.square().sum()
