"""Factories that fail, each in a way that users' do."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def forward(self, x):
        return self.layers(x)


def raises():
    raise KeyError("no such checkpoint")


def wrong_shape(batch_size=2):
    return Net(), torch.randn(batch_size, 5), lambda output: output.sum()


def no_loss():
    return Net(), torch.randn(2, 4)


def loss_before_batch():
    return Net(), lambda output: output.sum(), torch.randn(2, 4)


def loss_of_integers():
    return Net(), torch.randn(2, 4), lambda output: (output > 0).sum()


def mixed(output):
    return output @ torch.ones(3, 3)


def no_product():
    return Net(), torch.randn(2, 4), lambda output: mixed(output).sum()
