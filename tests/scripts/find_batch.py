"""Looks for a batch that fits by accelerate, which tries a smaller one each time that memory runs out."""

import torch
from accelerate.utils import find_executable_batch_size
from torch import nn


@find_executable_batch_size(starting_batch_size=1 << 22)
def train(batch_size):
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        loss = model(torch.randn(batch_size, 256, device="cuda")).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return batch_size


print("batch size", train())
print("max memory allocated", torch.cuda.max_memory_allocated())
