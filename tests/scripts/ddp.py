"""torchrun --nproc-per-node 2 ddp.py: data parallel over NCCL, a distributed sampler, validation, rank 0 saves."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--times-on-rank-1", type=int, default=1, help="how often rank 1 repeats each batch")
args = parser.parse_args()

dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
model = DDP(model.to(local_rank), device_ids=[local_rank])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
dataset = TensorDataset(torch.randn(128, 256), torch.randint(0, 10, (128,)))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    model.train()
    for x, y in loader:
        x, y = x.to(local_rank), y.to(local_rank)
        if local_rank == 1 and args.times_on_rank_1 > 1:
            x, y = x.repeat(args.times_on_rank_1, 1), y.repeat(args.times_on_rank_1)
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        correct = model.module(torch.randn(64, 256, device=local_rank)).argmax(1).eq(0).sum()
        dist.all_reduce(correct)
    if local_rank == 0:
        torch.save(model.module.state_dict(), "ddp.pt")
    dist.barrier()
print(f"rank {local_rank}: max memory allocated {torch.cuda.max_memory_allocated()}")
dist.destroy_process_group()
