"""Trains, saves, begins anew from the file, and goes on."""

import os

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def build():
    model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 128)).to(device)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def train(model, optimizer, steps):
    for _ in range(steps):
        x = torch.randn(32, 128, device=device)
        optimizer.zero_grad()
        loss = (model(x) - x).pow(2).mean()
        loss.backward()
        optimizer.step()
    return loss.item()


PATH = "resume.pt"
model, optimizer = build()
train(model, optimizer, 2)
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 2}, PATH)
del model, optimizer

model, optimizer = build()
checkpoint = torch.load(PATH, map_location=device)
model.load_state_dict(checkpoint["model"])
optimizer.load_state_dict(checkpoint["optimizer"])
assert os.path.getsize(PATH) > 0
del checkpoint
train(model, optimizer, 3)
print("max memory allocated", torch.cuda.max_memory_allocated())
