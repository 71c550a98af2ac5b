"""torch.compile with mode="reduce-overhead": a small model by CUDA graphs, trained and evaluated."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 16)).cuda()
compiled = torch.compile(model, mode="reduce-overhead")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(6):
    torch.compiler.cudagraph_mark_step_begin()
    x, y = torch.randn(64, 128, device="cuda"), torch.randint(0, 16, (64,), device="cuda")
    loss = nn.functional.cross_entropy(compiled(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(loss.item())
with torch.no_grad():
    compiled(torch.randn(64, 128, device="cuda"))
print("max memory allocated", torch.cuda.max_memory_allocated())
