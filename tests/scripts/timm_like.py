"""A timm model with mixup, label smoothing by soft targets, an average of the weights and its evaluation."""

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV2, accuracy

torch.backends.cudnn.benchmark = True
device = torch.device("cuda")
model = timm.create_model("mobilenetv3_small_050", num_classes=10, drop_rate=0.1).to(
    device, memory_format=torch.channels_last
)
model_ema = ModelEmaV2(model, decay=0.99)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
scheduler = CosineLRScheduler(optimizer, t_initial=2)
mixup_fn = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=10)
train_loss_fn = SoftTargetCrossEntropy()
scaler = torch.amp.GradScaler("cuda")


@torch.no_grad()
def validate(net):
    top1 = AverageMeter()
    net.eval()
    for _ in range(2):
        images = torch.randn(32, 3, 64, 64, device=device).contiguous(memory_format=torch.channels_last)
        target = torch.randint(0, 10, (32,), device=device)
        with torch.amp.autocast("cuda"):
            output = net(images)
        acc1, _ = accuracy(output, target, topk=(1, 5))
        top1.update(acc1.item(), images.size(0))
    return top1.avg


for epoch in range(2):
    model.train()
    losses = AverageMeter()
    for _ in range(2):
        images, target = torch.randn(16, 3, 64, 64).to(device), torch.randint(0, 10, (16,)).to(device)
        images, target = mixup_fn(images, target)
        images = images.contiguous(memory_format=torch.channels_last)
        with torch.amp.autocast("cuda"):
            output = model(images)
            loss = train_loss_fn(output, target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        model_ema.update(model)
        losses.update(loss.item(), images.size(0))
    validate(model)
    validate(model_ema.module)
    scheduler.step(epoch + 1)
torch.save({"state_dict": model.state_dict(), "state_dict_ema": model_ema.module.state_dict()}, "last.pth.tar")
print("max memory allocated", torch.cuda.max_memory_allocated())
