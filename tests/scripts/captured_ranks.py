"""torchrun --nproc-per-node 2 captured_ranks.py: a step with its collectives as a CUDA graph, and replayed."""

import os

import torch
import torch.distributed as dist

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
model = torch.nn.Linear(128, 128).cuda()
inputs, count = torch.randn(16, 128, device="cuda"), torch.tensor([rank + 1]).cuda()
everyone = torch.zeros(dist.get_world_size(), dtype=torch.int64, device="cuda")


def step():
    model.zero_grad(set_to_none=True)
    model(inputs).square().mean().backward()
    dist.all_reduce(model.weight.grad, op=dist.ReduceOp.AVG)
    dist.all_gather_into_tensor(everyone, count)
    model.weight.data.sub_(model.weight.grad, alpha=0.1)


side = torch.cuda.Stream()
with torch.cuda.stream(side):
    step()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
graph.replay()
torch.cuda.synchronize()
assert everyone.tolist() == [1, 2]
print(f"rank {rank}: replayed")
print(f"rank {rank}: max memory allocated {torch.cuda.max_memory_allocated()}")
dist.destroy_process_group()
