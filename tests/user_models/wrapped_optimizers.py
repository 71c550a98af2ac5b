"""Two optimizers as one, as where matrices are trained otherwise than the rest: the wrapper's own state is empty."""

import torch
from torch import nn


class Both(torch.optim.Optimizer):
    def __init__(self, *parts):
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})

    def step(self, closure=None):
        for part in self.parts:
            part.step()


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
