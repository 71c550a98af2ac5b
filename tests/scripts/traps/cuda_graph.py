"""A whole training step recorded as a CUDA graph after a warm-up on a side stream, and replayed with new data."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, 512)).cuda()
loss_fn, optimizer = nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1)
static_input, static_target = torch.randn(256, 512, device="cuda"), torch.randn(256, 512, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        loss_fn(model(static_input), static_target).backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    static_loss = loss_fn(model(static_input), static_target)
    static_loss.backward()
    optimizer.step()
for _ in range(5):
    static_input.copy_(torch.randn(256, 512))
    static_target.copy_(torch.randn(256, 512))
    graph.replay()
print("loss", static_loss.item())
print("max memory allocated", torch.cuda.max_memory_allocated())
