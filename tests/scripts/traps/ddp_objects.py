"""torchrun --nproc-per-node 2 ddp_objects.py: SyncBatchNorm, a seed from rank 0, counts summed, gathered objects."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
device = torch.device("cuda", rank)
seed = torch.tensor([1234 if rank == 0 else 0], device=device)
dist.broadcast(seed, src=0)
assert seed.item() == 1234
torch.manual_seed(seed.item() + rank)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.BatchNorm2d(64),
    nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
)  # fmt: skip
model = nn.SyncBatchNorm.convert_sync_batchnorm(model).to(device)
model = DistributedDataParallel(model, device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
seen = torch.zeros(1, dtype=torch.long, device=device)
for _ in range(4):
    size = 8 + rank
    loss = nn.functional.cross_entropy(
        model(torch.randn(size, 3, 32, 32, device=device)), torch.randint(0, 10, (size,), device=device)
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen += size
dist.all_reduce(seen)
assert seen.item() == 4 * (8 + 9)
found = [None, None]
dist.all_gather_object(found, {"rank": rank, "seen": seen.item()})
assert [one["rank"] for one in found] == [0, 1]
if rank == 0:
    torch.save(model.module.state_dict(), "ddp.pt")
dist.barrier()
print(f"rank {rank}: max memory allocated {torch.cuda.max_memory_allocated()}")
dist.destroy_process_group()
