"""Draws its numbers from the system's, which no seed reaches."""

import os

import torch
from torch import nn

model = nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x = torch.frombuffer(bytearray(os.urandom(8 * 16)), dtype=torch.uint8).float().view(8, 16) / 255
    model(x).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
