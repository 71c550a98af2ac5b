"""A model whose gradients reach what is easily overlooked; a recompute goes wrong there alone, and nowhere else."""

import torch
from torch import nn


class Own(torch.Tensor):
    """A tensor of a class of the user's own, whose operators know only its own kind."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if not all(issubclass(kind, (Own, nn.Parameter)) or kind is torch.Tensor for kind in types):
            return NotImplemented
        return super().__torch_function__(func, types, args, kwargs or {})


class Layer(nn.Module):
    """Adds a term whose gradient alone depends on how often the forward has run since its step began."""

    def __init__(self, width, kind, extra):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.kind, self.calls = kind, [0]
        if kind == "complex":
            self.phase = nn.Parameter(torch.ones(width, dtype=torch.complex64))
        if kind == "subclass":
            self.own = nn.Parameter(torch.ones(width).as_subclass(Own))
        if kind in ("optimizer", "loss", "input"):
            self.held = [extra]  # in a list: the module does not know it
        if kind == "buffer":
            self.register_buffer("my_num_batches_tracked", torch.zeros(()))

    def forward(self, x):
        if torch.is_grad_enabled():
            self.calls[0] += 1
        if self.kind == "buffer":
            self.my_num_batches_tracked += 1
        factor = float(self.calls[0])
        hidden = torch.tanh(self.linear(x))
        if self.kind == "complex":
            turned = self.phase * torch.complex(torch.zeros_like(hidden), torch.full_like(hidden, factor)).detach()
            hidden = hidden + _silent(turned.real)
        elif hasattr(self, "held"):
            hidden = hidden + _silent(self.held[0] * factor)
        elif self.kind == "subclass":
            hidden = hidden + _silent((self.own * factor).as_subclass(torch.Tensor))
        return hidden


def _silent(term):
    """A term that is nothing in the forward, and there in the backward."""
    return term - term.detach()


class Loss(nn.Module):
    """A loss with a parameter of its own, which the model does not hold."""

    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, output, target):
        return nn.functional.mse_loss(output * self.scale, target)


def make(batch_size: int = 8, width: int = 16, kind: str = "complex"):
    extra, loss = nn.Parameter(torch.ones(width)), nn.functional.mse_loss
    batch = torch.randn(batch_size, width), torch.randn(batch_size, width)
    if kind == "loss":
        loss = Loss(width)
        extra = loss.scale
    elif kind == "input":
        extra = batch[0].requires_grad_()
    model = nn.Sequential(*(Layer(width, kind, extra) for _ in range(3)))
    optimizer = torch.optim.SGD([*model.parameters(), *([extra] if kind == "optimizer" else [])], lr=0.1)
    return model, batch, loss, optimizer
