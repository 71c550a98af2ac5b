"""Models that recompute by their own means, as guided-diffusion's checkpoint does; and others that only look alike."""

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction, checkpoint


class OwnCheckpoint(torch.autograd.Function):
    """As `CheckpointFunction` of openai/guided-diffusion, guided_diffusion/nn.py: the inputs are attributes of ctx."""

    @staticmethod
    def forward(ctx, run_function, length, *args):
        ctx.run_function = run_function
        ctx.input_tensors = list(args[:length])
        ctx.input_params = list(args[length:])
        with torch.no_grad():
            return ctx.run_function(*ctx.input_tensors)

    @staticmethod
    def backward(ctx, *output_grads):
        ctx.input_tensors = [x.detach().requires_grad_(True) for x in ctx.input_tensors]
        with torch.enable_grad():
            shallow_copies = [x.view_as(x) for x in ctx.input_tensors]
            output_tensors = ctx.run_function(*shallow_copies)
        input_grads = torch.autograd.grad(
            output_tensors, ctx.input_tensors + ctx.input_params, output_grads, allow_unused=True
        )
        return (None, None, *input_grads)


class Saving(torch.autograd.Function):
    """Its backward asks for a saved tensor, where a checkpoint around it begins to recompute."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.sine = torch.sin(x)
        return torch.cos(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return -ctx.sine * torch.ones_like(x) * gradient


class Block(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 8)
        if way == "critic":
            self.critic = nn.Linear(8, 8)
        self.way = way

    def forward(self, x):
        ways = {
            "own": lambda: OwnCheckpoint.apply(self._forward, 1, x, *self.parameters()),
            "class": lambda: CheckpointFunction.apply(self._forward, True, x),
            "reentrant": lambda: checkpoint(self._forward, x, use_reentrant=True),
            "non-reentrant": lambda: checkpoint(self._forward, x, use_reentrant=False),
            "hooked": lambda: self._hooked(x, self.second_of_x),
            "critic": lambda: self._hooked(x, torch.enable_grad()(self.critic)),  # only the backward runs it
            "saving": lambda: Saving.apply(self._forward(x)),
            "raising": lambda: OwnCheckpoint.apply(self._raising, 1, x, *self.parameters()),
        }
        return ways[self.way]()

    def _forward(self, x):
        return x + self.second(torch.tanh(self.first(x)))

    def _raising(self, x):
        return self._forward(x) if not torch.is_grad_enabled() else self.second(x)

    def second_of_x(self, x):
        return self.second(self.first(x))

    def _hooked(self, x, run):
        out = self._forward(x)
        out.register_hook(lambda gradient: gradient + 0 * run(gradient).detach())
        return out


class Net(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.blocks = nn.Sequential(*(Block(way) for _ in range(3)))

    def forward(self, x):
        return self.blocks(self.stem(x))


def make(way: str = "own", batch_size: int = 4):
    return Net(way), torch.randn(batch_size, 8), lambda out: out.square().mean()
