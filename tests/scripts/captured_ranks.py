"""torchrun --nproc-per-node 2 captured_ranks.py: a step with its collectives as a CUDA graph, and replayed."""

import os

import torch
import torch.distributed as dist
from torch import nn

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128)).cuda()
inputs = torch.randn(16, 128, device="cuda")
count = torch.tensor([rank + 1]).cuda()
everyone = torch.zeros(dist.get_world_size(), dtype=torch.int64, device="cuda")


def step():
    model.zero_grad(set_to_none=True)
    model(inputs).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    dist.all_gather_into_tensor(everyone, count)
    for parameter in model.parameters():
        parameter.data.sub_(parameter.grad, alpha=0.1)


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(2):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for _ in range(4):
    graph.replay()
torch.cuda.synchronize()
assert everyone.tolist() == [1, 2]
print(f"rank {rank}: replayed")
print(f"rank {rank}: max memory allocated {torch.cuda.max_memory_allocated()}")
dist.destroy_process_group()
