"""A model whose gradients reach what is easily overlooked; a recompute goes wrong there alone, and nowhere else."""

import torch
from torch import nn


class Layer(nn.Module):
    """Adds a term whose gradient alone depends on how often the forward has run since its step began."""

    def __init__(self, width, kind, extra):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.calls, self.held = [0], [extra]  # in a list: the module does not know it
        if kind == "complex":
            self.phase = nn.Parameter(torch.ones(width, dtype=torch.complex64))

    def forward(self, x):
        if torch.is_grad_enabled():
            self.calls[0] += 1
        factor = float(self.calls[0])
        hidden = torch.tanh(self.linear(x))
        if hasattr(self, "phase"):
            turned = self.phase * torch.complex(torch.zeros_like(hidden), torch.full_like(hidden, factor)).detach()
            term = turned.real
        else:
            term = self.held[0] * factor
        return hidden + (term - term.detach())  # nothing in the forward, and there in the backward


class Loss(nn.Module):
    """A loss with a parameter of its own, which the model does not hold."""

    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, output, target):
        return nn.functional.mse_loss(output * self.scale, target)


def make(batch_size: int = 8, width: int = 16, kind: str = "complex"):
    loss = Loss(width) if kind == "loss" else nn.functional.mse_loss
    batch = torch.randn(batch_size, width), torch.randn(batch_size, width)
    extra = {"loss": lambda: loss.scale, "input": lambda: batch[0].requires_grad_()}.get(
        kind, lambda: nn.Parameter(torch.ones(width))
    )()
    model = nn.Sequential(*(Layer(width, kind, extra) for _ in range(3)))
    optimizer = torch.optim.SGD([*model.parameters(), *([extra] if kind == "optimizer" else [])], lr=0.1)
    return model, batch, loss, optimizer
