"""Keeps each loss with its graph, by mistake: memory grows from step to step."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=6)
args = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses, outputs = [], []
for _ in range(args.steps):
    x = torch.randn(512, 64, device=device)
    output = model(x)
    loss = output.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss)
    outputs.append(model(x))
print("mean loss", (sum(losses) / len(losses)).item())
print("max memory allocated", torch.cuda.max_memory_allocated())
