"""torchrun --nproc-per-node 4 tensor_parallel.py: a mesh of data and tensor parallel ranks, as torchtitan makes it."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

VOCABULARY, DIM = 256, 128
PLAN = {
    "0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "1": SequenceParallel(),
    "2.0": ColwiseParallel(input_layouts=Shard(1)),
    "2.2": RowwiseParallel(output_layouts=Shard(1)),
    "3": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
}
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
mesh = init_device_mesh("cuda", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
seed = [torch.seed()]
dist.broadcast_object_list(seed, src=0)
torch.manual_seed(seed[0])
mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM, bias=False), nn.SiLU(), nn.Linear(4 * DIM, DIM, bias=False))
model = nn.Sequential(
    nn.Embedding(VOCABULARY, DIM), nn.RMSNorm(DIM), mlp, nn.Linear(DIM, VOCABULARY, bias=False)
).cuda()
parallelize_module(model, mesh["tp"], PLAN)
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for _ in range(3):
    tokens = torch.randint(0, VOCABULARY, (4, 65)).cuda()
    with loss_parallel():
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
    optimizer.step()
    optimizer.zero_grad()
    total = loss.detach().full_tensor()
    dist.all_reduce(total, op=dist.ReduceOp.AVG, group=mesh["dp"].get_group())
    float(total), float(norm)
shards = [None] * dist.get_world_size()
dist.all_gather_object(shards, [mesh["dp"].get_local_rank(), mesh["tp"].get_local_rank(), seed[0]])
assert shards == [[r // 2, r % 2, seed[0]] for r in range(dist.get_world_size())], shards
get_model_state_dict(model)
print(f"rank {rank}: all arrived")
print(f"rank {rank}: max memory allocated {torch.cuda.max_memory_allocated()}")
dist.destroy_process_group()
