"""Training steps that ask a GPU for what only it could know: `python unknown_values.py NAME`."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
batch = torch.randn(512, 64).cuda()


def flag(outputs):
    while not (outputs > 0).any():
        outputs = outputs + 1
    return outputs


def caught(outputs):
    rows = (outputs[:, 0] > 0).nonzero().squeeze(1)
    try:
        return torch.empty(len(rows), 1 << 24, device="cuda")
    except torch.OutOfMemoryError:
        return outputs[:1]


def checks(outputs):
    loss = outputs.square().mean()
    assert torch.isfinite(loss)
    assert not torch.isnan(outputs).any()
    assert not (outputs != outputs).any()
    assert loss < 10
    assert loss.item() == loss.item() == 0.0
    assert "nan" not in str(outputs)
    return outputs


for _ in range(2):
    globals()[sys.argv[1]](model(batch)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("max memory allocated", torch.cuda.max_memory_allocated())
