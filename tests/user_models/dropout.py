"""A perceptron with dropout: random numbers are drawn in every block."""

import torch
import torch.nn.functional as F
from torch import nn


def net(batch_size=32, p=0.5):
    hidden = [module for _ in range(5) for module in (nn.Linear(64, 64), nn.ReLU(), nn.Dropout(p))]
    model = nn.Sequential(*hidden, nn.Linear(64, 10))
    return model, (torch.randn(batch_size, 64), torch.randint(10, (batch_size,))), F.cross_entropy
