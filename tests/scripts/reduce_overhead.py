"""torch.compile(mode="reduce-overhead"): graphs are recorded once, and replayed."""

import torch
from torch import nn
from torch._dynamo.utils import counters

recorded = [0]
end = torch.cuda.CUDAGraph.capture_end


def count(graph):
    recorded[0] += 1
    end(graph)


torch.cuda.CUDAGraph.capture_end = count
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 8)).cuda()
compiled = torch.compile(model, mode="reduce-overhead")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(8):
    torch.compiler.cudagraph_mark_step_begin()
    x, y = torch.randn(32, 64, device="cuda"), torch.randint(0, 8, (32,), device="cuda")
    nn.functional.cross_entropy(compiled(x), y).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
print(f"compiled {counters['stats']['unique_graphs']} times, recorded {recorded[0]} graphs")
print("max memory allocated", torch.cuda.max_memory_allocated())
