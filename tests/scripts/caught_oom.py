"""Looks for a batch that fits: halves it whenever memory runs out."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=1 << 22)
args = parser.parse_args()
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step(batch_size):
    x = torch.randn(batch_size, 256, device="cuda")
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


batch_size = args.batch_size
done = 0
while done < 3:
    try:
        step(batch_size)
        done += 1
    except torch.OutOfMemoryError:
        batch_size //= 2
        torch.cuda.empty_cache()
print("batch size", batch_size)
print("max memory allocated", torch.cuda.max_memory_allocated())
