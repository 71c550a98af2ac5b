"""A classifier that returns (loss, logits, hidden), as older Hugging Face models do."""

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, x):
        return (x + self.outer(F.relu(self.inner(self.norm(x)))),)


class Classifier(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.layer = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, 3)

    def forward(self, x, labels=None):
        hidden = x
        for layer in self.layer:
            hidden = layer(hidden)[0]
        logits = self.head(hidden)
        loss = F.cross_entropy(logits, labels)
        return loss, logits, hidden


def create(width=24, layers=6):
    model = Classifier(width, layers)
    return model, {"x": torch.randn(16, width), "labels": torch.randint(0, 3, (16,))}
