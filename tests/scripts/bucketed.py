"""A tagger over sentences sorted into batches of one length each: every batch has another shape."""

import random

import torch
from torch import nn

random.seed(0)
sentences = [[random.randrange(100) for _ in range(random.choice([8, 16, 24, 40]))] for _ in range(80)]


def batches(size):
    by_length = {}
    for s in sentences:
        by_length.setdefault(len(s), []).append(s)
    found = [torch.tensor(g[i : i + size]) for g in by_length.values() for i in range(0, len(g), size)]
    random.shuffle(found)
    return found


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.conv = nn.Conv1d(64, 128, 3, padding=1)
        self.attn = nn.MultiheadAttention(128, 4, batch_first=True)
        self.out = nn.Linear(128, 20)

    def forward(self, x):
        h = self.conv(self.embed(x).transpose(1, 2)).relu().transpose(1, 2)
        h, _ = self.attn(h, h, h)
        return self.out(h)


device = "cuda" if torch.cuda.is_available() else "cpu"
model = Tagger().to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)
for _ in range(2):
    for batch in batches(8):
        x = batch.to(device)
        logits = model(x)
        loss = nn.functional.cross_entropy(logits.view(-1, 20), (x % 20).view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
print("max memory allocated", torch.cuda.max_memory_allocated())
