"""fp16 with a GradScaler: clipping, a scheduler, an average of the weights, evaluation with four times the batch."""

import argparse

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=256)
parser.add_argument("--width", type=int, default=512)
args = parser.parse_args()

model = nn.Sequential(
    nn.Linear(args.width, 4 * args.width),
    nn.ReLU(),
    nn.Linear(4 * args.width, args.width),
    nn.ReLU(),
    nn.Linear(args.width, 10),
)
model.cuda()
ema_model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=4)
scaler = torch.amp.GradScaler("cuda")
for _ in range(4):
    inputs = torch.randn(args.batch_size, args.width, device="cuda")
    targets = torch.randint(0, 10, (args.batch_size,), device="cuda")
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        outputs = model(inputs)
        loss = nn.functional.cross_entropy(outputs, targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    ema_model.update_parameters(model)

model.eval()
with torch.inference_mode():
    inputs = torch.randn(4 * args.batch_size, args.width, device="cuda")
    logits = model(inputs)
print("max memory allocated", torch.cuda.max_memory_allocated())
