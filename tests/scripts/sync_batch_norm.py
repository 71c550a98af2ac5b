"""Two ranks whose batch norms agree on the batch of both, and who tell each other a seed, counts and objects."""

import os

import torch
from torch import distributed, nn

distributed.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
seed = torch.tensor([1234 + rank], device="cuda")
distributed.broadcast(seed, 0)
model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
model = nn.SyncBatchNorm.convert_sync_batchnorm(model.cuda())
model = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    inputs, labels = torch.randn(4, 3, 8, 8).cuda(), torch.randint(10, (4,)).cuda()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    count = torch.tensor([len(labels)], device="cuda")
    distributed.all_reduce(count)
objects = [None, None]
distributed.all_gather_object(objects, {"rank": rank})
print(f"seed {seed.item()}, count {count.item()}, objects {objects}\n", end="", flush=True)
distributed.destroy_process_group()
