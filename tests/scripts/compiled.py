"""A model compiled by torch.compile, trained and evaluated."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 8)).cuda()
model = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    x, y = torch.randn(32, 64, device="cuda"), torch.randint(0, 8, (32,), device="cuda")
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
model.eval()
with torch.no_grad():
    model(torch.randn(32, 64, device="cuda"))
print("max memory allocated", torch.cuda.max_memory_allocated())
