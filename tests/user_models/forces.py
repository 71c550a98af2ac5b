"""An interatomic potential, trained on forces: its forward differentiates the energy, and the backward does so again."""

import torch
from torch import nn


class Potential(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, positions):
        positions = positions.requires_grad_()
        energy = self.layers(positions)
        (gradient,) = torch.autograd.grad(energy.sum(), positions, create_graph=True)
        return energy, -gradient


def potential(width=16):
    positions, forces = torch.randn(2, 6, 3)
    return Potential(width), (positions, forces), lambda found, forces: (found[1] - forces).square().mean()
