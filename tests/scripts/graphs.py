"""A whole step as a CUDA graph, as PyTorch's documentation has it, then replayed with other inputs."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
inputs, targets = (torch.randn(64, 256, device="cuda") for _ in range(2))


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    step()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        beside = inputs + 1
    torch.cuda.current_stream().wait_stream(side)
for _ in range(5):
    inputs.copy_(torch.randn(64, 256))
    graph.replay()
torch.cuda.synchronize()


def pool_of(tensor):
    """The pool of the segment that a tensor lies in."""
    at = tensor.data_ptr()
    segments = torch.cuda.memory_snapshot()
    return next(one["segment_pool_id"] for one in segments if one["address"] <= at < one["address"] + one["total_size"])


captured = [*(parameter.grad for parameter in model.parameters()), beside]
print("in the graph's own pool:", all(pool_of(tensor) == graph.pool() for tensor in captured))
print("beside it:", all(pool_of(tensor) == (0, 0) for tensor in (inputs, *model.parameters())))
print("max memory allocated", torch.cuda.max_memory_allocated())
