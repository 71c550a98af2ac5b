"""torchrun --nproc-per-node 2 accumulate_no_sync.py: gradients gathered over micro-batches, exchanged in the last."""

import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group(backend="nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.body = nn.Sequential(*[nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()) for _ in range(3)])
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.body(F.relu(self.stem(x))).mean((2, 3)))


model = DDP(Net().cuda(), device_ids=[rank], gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
accumulation = 4
for _ in range(3):
    for micro in range(accumulation):
        images = torch.randn(8, 3, 24, 24, device="cuda")
        labels = torch.randint(0, 10, (8,), device="cuda")
        with model.no_sync() if micro + 1 < accumulation else nullcontext():
            loss = F.cross_entropy(model(images), labels) / accumulation
            loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
print(f"rank {rank}: max memory allocated {torch.cuda.max_memory_allocated()}")
dist.destroy_process_group()
