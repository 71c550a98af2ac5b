"""One wide layer: every phase asks for tensors that no earlier phase has left room for."""

import torch
from torch import nn

WIDTH, BATCH = 4096, 1024  # 64 MiB of weights, 16 MiB of inputs
model = nn.Linear(WIDTH, WIDTH, bias=False, device="cuda")
optimizer = torch.optim.Adam(model.parameters(), foreach=False)


def evaluate():
    with torch.no_grad():
        inputs = torch.randn(32 * BATCH, WIDTH, device="cuda")
        return model(inputs)


for _ in range(3):
    inputs = torch.randn(BATCH, WIDTH, device="cuda")
    outputs = model(inputs)
    loss = outputs.mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
del inputs, outputs, loss
evaluate()
print("max memory allocated", torch.cuda.max_memory_allocated())
