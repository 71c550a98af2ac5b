"""Trains a ResNet-18 on random images, with workers, meters, validation and checkpoints."""

import argparse
import shutil
import time

import torch
import torch.nn as nn
import torchvision.models as models
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser(description="ImageNet-like training")
parser.add_argument("-a", "--arch", default="resnet18")
parser.add_argument("-j", "--workers", default=2, type=int)
parser.add_argument("--epochs", default=2, type=int)
parser.add_argument("-b", "--batch-size", default=8, type=int)
parser.add_argument("--images", default=24, type=int)
parser.add_argument("--fail", action="store_true", help="raise in the second epoch")
args = parser.parse_args()
best_acc1 = 0.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Images(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.randn(3, 64, 64), index % 10


class AverageMeter:
    def __init__(self, name):
        self.name, self.sum, self.count = name, 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    def __str__(self):
        return f"{self.name} {self.sum / max(1, self.count):.3f}"


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
        return [correct[:k].reshape(-1).float().sum(0) * (100.0 / target.size(0)) for k in topk]


def train(loader, model, criterion, optimizer, epoch):
    losses, top1, data_time = AverageMeter("Loss"), AverageMeter("Acc@1"), AverageMeter("Data")
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(loader):
        data_time.update(time.time() - end)
        images = images.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        output = model(images)
        loss = criterion(output, target)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        losses.update(loss.item(), images.size(0))
        top1.update(acc1.item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        end = time.time()
        if i % 2 == 0:
            print(f"Epoch [{epoch}][{i}/{len(loader)}]", losses, top1)


def validate(loader, model, criterion):
    losses, top1 = AverageMeter("Loss"), AverageMeter("Acc@1")
    model.eval()
    with torch.no_grad():
        for images, target in loader:
            images = images.to(device, non_blocking=True)
            target = target.to(device, non_blocking=True)
            output = model(images)
            loss = criterion(output, target)
            acc1, _ = accuracy(output, target, topk=(1, 5))
            losses.update(loss.item(), images.size(0))
            top1.update(acc1.item(), images.size(0))
    return top1.sum / top1.count


def save_checkpoint(state, is_best, filename="checkpoint.pth.tar"):
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, "model_best.pth.tar")


model = models.__dict__[args.arch](num_classes=10).to(device)
criterion = nn.CrossEntropyLoss().to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
scheduler = StepLR(optimizer, step_size=1, gamma=0.1)
train_loader = DataLoader(
    Images(args.images), batch_size=args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=True
)
val_loader = DataLoader(Images(32), batch_size=16, num_workers=args.workers, pin_memory=True)
for epoch in range(args.epochs):
    if args.fail and epoch == 1:
        raise KeyError("no such class")
    train(train_loader, model, criterion, optimizer, epoch)
    acc1 = validate(val_loader, model, criterion)
    scheduler.step()
    is_best = acc1 >= best_acc1
    best_acc1 = max(acc1, best_acc1)
    state = {"epoch": epoch + 1, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
    save_checkpoint(state, is_best)
print("max memory allocated", torch.cuda.max_memory_allocated())
