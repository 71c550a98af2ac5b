"""One wide layer: every phase asks for tensors that no earlier phase has left room for; of several ranks, one does."""

import os
import sys

import torch
from torch import nn

WIDE_RANK = sys.argv[1] if len(sys.argv) > 1 else "0"
IS_WIDE = os.environ.get("RANK", "0") == WIDE_RANK
WIDTH, BATCH = (4096, 1024) if IS_WIDE else (64, 16)  # 64 MiB of weights, 16 MiB of inputs
torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
torch.backends.cuda.matmul.allow_tf32 = True
model = nn.Linear(WIDTH, WIDTH, bias=False, device="cuda")
optimizer = torch.optim.Adam(model.parameters(), foreach=False)


def train():
    for _ in range(3):
        inputs = torch.randn(BATCH, WIDTH, device="cuda")
        outputs = model(inputs)
        loss = outputs.mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def evaluate():
    with torch.no_grad():
        inputs = torch.randn(32 * BATCH, WIDTH, device="cuda")
        return model(inputs)


train()
evaluate()
print("max memory allocated", torch.cuda.max_memory_allocated())
