"""A bag of words, of which each step changes only those that it saw: their gradients are sparse."""

import torch
from torch import nn


def words(number=1000, width=64):
    model = nn.Sequential(nn.Embedding(number, width, sparse=True), nn.Flatten(), nn.Linear(50 * width, 1))
    return model, (torch.arange(16 * 50).view(16, 50), torch.ones(16, 1)), nn.functional.mse_loss


class Both(torch.optim.Optimizer):
    """SparseAdam, which takes no dense gradients, for the table, and AdamW for the rest."""

    def __init__(self, model):
        self.table = torch.optim.SparseAdam([model[0].weight])
        self.rest = torch.optim.AdamW(list(model[1:].parameters()))
        super().__init__(model.parameters(), {})

    def step(self, closure=None):
        self.table.step()
        self.rest.step()


def bag(number=100, width=16):
    blocks = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(3)]
    model = nn.Sequential(nn.EmbeddingBag(number, width, sparse=True), *blocks)
    words = torch.arange(8 * 6).view(8, 6) % 20  # each several times
    return model, words, lambda output: output.square().mean(), Both(model)
