"""A small CNN with BatchNorm and ReLUs in place."""

import torch
from torch import nn


def conv(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(conv(3, 8), conv(8, 8), nn.MaxPool2d(2), conv(8, 16), conv(16, 16))
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(16 * 8 * 8, 32), nn.ReLU(inplace=True), nn.Linear(32, 10)
        )

    def forward(self, images):
        return self.classifier(self.features(images))


def build(batch_size=8):
    batch = torch.randn(batch_size, 3, 16, 16), torch.randint(10, (batch_size,))
    return Net(), batch, nn.CrossEntropyLoss()
