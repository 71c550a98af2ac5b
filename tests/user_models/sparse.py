"""A bag of words, of which each step changes only those that it saw: their gradients are sparse."""

import torch
from torch import nn


def words(number=1000, width=64):
    model = nn.Sequential(nn.Embedding(number, width, sparse=True), nn.Flatten(), nn.Linear(50 * width, 1))
    return model, (torch.arange(16 * 50).view(16, 50), torch.ones(16, 1)), nn.functional.mse_loss
