"""torchrun --nproc-per-node 2 timm_ranks.py: a small ViT of timm, bf16, LAMB, its own checkpoints, RandAugment."""

import os

import numpy as np
import timm
import torch
import torch.distributed as dist
from PIL import Image
from timm.data import create_transform
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, accuracy, distribute_bn, reduce_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Images(Dataset):
    def __init__(self, length, is_training):
        options = {"auto_augment": "rand-m9-mstd0.5"} if is_training else {}
        self.length = length
        self.transform = create_transform(64, is_training=is_training, **options)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        pixels = np.random.default_rng(index).integers(0, 255, (80, 80, 3), dtype=np.uint8)
        return self.transform(Image.fromarray(pixels)), index % 10


dist.init_process_group("nccl")
rank, world = int(os.environ["LOCAL_RANK"]), dist.get_world_size()
torch.cuda.set_device(rank)
device = torch.device("cuda", rank)
model = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=10, drop_path_rate=0.1).to(device)
model.set_grad_checkpointing(True)
model = DistributedDataParallel(model, device_ids=[rank])
optimizer = create_optimizer_v2(model, opt="lamb", lr=5e-3, weight_decay=0.02)
scheduler, _ = create_scheduler_v2(optimizer, sched="cosine", num_epochs=2)
sampler = DistributedSampler(Images(64, is_training=True))
train_loader = DataLoader(sampler.dataset, 8, sampler=sampler, num_workers=1, pin_memory=True)
eval_loader = DataLoader(Images(16, is_training=False), 8)
for epoch in range(2):
    model.train()
    sampler.set_epoch(epoch)
    losses = AverageMeter()
    for images, target in train_loader:
        images, target = images.to(device, non_blocking=True), target.to(device, non_blocking=True)
        with torch.amp.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), target, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.update(reduce_tensor(loss.data, world).item(), images.size(0))
    distribute_bn(model, world, reduce=True)
    model.eval()
    top1 = AverageMeter()
    with torch.no_grad():
        for images, target in eval_loader:
            acc1, _ = accuracy(model(images.to(device)), target.to(device), topk=(1, 5))
            top1.update(reduce_tensor(acc1, world).item(), images.size(0))
    scheduler.step(epoch + 1, top1.avg)
    if rank == 0:
        torch.save(model.module.state_dict(), "last.pth.tar")
print(f"rank {rank}: max memory allocated {torch.cuda.max_memory_allocated()}")
dist.destroy_process_group()
