"""Optimizers of users: two as one, one that keeps slow weights, and those that step in the backward."""

import torch
from torch import nn


class Both(torch.optim.Optimizer):
    """Two optimizers as one, as where matrices are trained otherwise than the rest: its own state is empty."""

    def __init__(self, *parts):
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})

    def step(self, closure=None):
        for part in self.parts:
            part.step()


class Lookahead(torch.optim.Optimizer):
    """Slow weights follow the fast ones every fifth step, and are in an attribute."""

    def __init__(self, inner):
        self.inner, self.slow, self.num_steps = inner, [], 0
        super().__init__(inner.param_groups, {})

    @torch.no_grad()
    def step(self, closure=None):
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        self.slow = self.slow or [parameter.clone() for parameter in parameters]
        self.inner.step()
        self.num_steps += 1
        for slow, fast in zip(self.slow, parameters, strict=True):
            if self.num_steps % 5 == 0:
                slow.lerp_(fast, 0.5)
                fast.copy_(slow)


def ahead(batch_size=32, width=128):
    module, batch, loss, optimizer = make(batch_size, width, wraps=False)
    return module, batch, loss, lambda parameters: Lookahead(optimizer(parameters))


def in_backward(batch_size=32, width=128, drops=True):
    """An optimizer for each parameter, which steps as soon as its gradient is there, and drops that."""
    module, batch, loss, _ = make(batch_size, width)
    optimizers = {parameter: torch.optim.Adam([parameter], foreach=False) for parameter in module.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        if drops:
            optimizers[parameter].zero_grad()

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    return module, batch, loss, lambda parameters: torch.optim.SGD(parameters, lr=0.0)  # all is done in the backward


def make(batch_size=32, width=128, wraps=True):
    module = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
    batch = torch.randn(batch_size, width), torch.zeros(batch_size, width)

    def optimizer(parameters):
        parameters = list(parameters)
        if not wraps:
            return torch.optim.Adam(parameters)
        matrices = [parameter for parameter in parameters if parameter.ndim == 2]
        others = [parameter for parameter in parameters if parameter.ndim != 2]
        return Both(torch.optim.Adam(matrices), torch.optim.Adam(others))

    return module, batch, nn.functional.mse_loss, optimizer


def words(number=1000, width=64):
    """A bag of words, of which each step changes only those that it saw: their gradients are sparse."""
    model = nn.Sequential(nn.Embedding(number, width, sparse=True), nn.Flatten(), nn.Linear(50 * width, 1))
    return model, (torch.arange(16 * 50).view(16, 50), torch.ones(16, 1)), nn.functional.mse_loss


def bag(number=100, width=16):
    """SparseAdam, which takes no dense gradients, for the table, and AdamW for the rest."""
    blocks = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(3)]
    model = nn.Sequential(nn.EmbeddingBag(number, width, sparse=True), *blocks)
    words = torch.arange(8 * 6).view(8, 6) % 20  # each several times
    optimizer = Both(torch.optim.SparseAdam([model[0].weight]), torch.optim.AdamW(model[1:].parameters()))
    return model, words, lambda output: output.square().mean(), optimizer
