"""An optimizer in the backward, as in PyTorch's tutorial: each gradient is stepped with where it arrives, and freed."""

import torch
from torch import nn

RATE = 0.1


def make(hooked=True):
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    own = {parameter: torch.optim.SGD([parameter], lr=RATE) for parameter in module.parameters()}

    def step(parameter):
        own[parameter].step()
        parameter.grad = None

    for parameter in module.parameters() if hooked else ():
        parameter.register_post_accumulate_grad_hook(step)
    batch = torch.randn(4, 8), torch.randn(4, 8)
    return (
        module,
        batch,
        nn.functional.mse_loss,
        lambda parameters: torch.optim.SGD(parameters, lr=0.0 if hooked else RATE),
    )
