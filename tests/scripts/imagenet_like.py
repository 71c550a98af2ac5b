"""Trains a ResNet-18 on random images, with workers, validation and checkpoints."""

import argparse
import shutil

import torch
import torch.nn as nn
import torchvision.models as models
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser(description="ImageNet-like training")
parser.add_argument("-j", "--workers", default=2, type=int)
parser.add_argument("--epochs", default=2, type=int)
args = parser.parse_args()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Images(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.randn(3, 64, 64), index % 10


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
        return [correct[:k].reshape(-1).float().sum(0) * (100.0 / target.size(0)) for k in topk]


def train(loader, model, criterion, optimizer, epoch):
    model.train()
    for i, (images, target) in enumerate(loader):
        images = images.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        output = model(images)
        loss = criterion(output, target)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        print(f"Epoch [{epoch}][{i}/{len(loader)}] Loss {loss.item():.3f} Acc@1 {acc1.item():.1f}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def validate(loader, model, criterion):
    right = []
    model.eval()
    with torch.no_grad():
        for images, target in loader:
            images = images.to(device, non_blocking=True)
            target = target.to(device, non_blocking=True)
            output = model(images)
            loss = criterion(output, target)
            acc1, _ = accuracy(output, target, topk=(1, 5))
            right.append(acc1.item())
    print(f"Val loss {loss.item():.3f}")
    return sum(right) / len(right)


model = models.resnet18(num_classes=10).to(device)
criterion = nn.CrossEntropyLoss().to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
scheduler = StepLR(optimizer, step_size=1, gamma=0.1)
train_loader = DataLoader(Images(24), batch_size=8, shuffle=True, num_workers=args.workers, pin_memory=True)
val_loader = DataLoader(Images(32), batch_size=16, num_workers=args.workers, pin_memory=True)
best_acc1 = 0.0
for epoch in range(args.epochs):
    train(train_loader, model, criterion, optimizer, epoch)
    acc1 = validate(val_loader, model, criterion)
    scheduler.step()
    state = {"epoch": epoch + 1, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, "checkpoint.pth.tar")
    if acc1 >= best_acc1:
        best_acc1 = acc1
        shutil.copyfile("checkpoint.pth.tar", "model_best.pth.tar")
print("max memory allocated", torch.cuda.max_memory_allocated())
