"""Small training steps whose head meets cross entropy in the ways of users' code, for tests of levers."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from profiler.training.workload import Workload

VOCABULARY, WIDTH, TIME, BATCH = 96, 32, 16, 4


class Nano(nn.Module):
    """nanoGPT's way: (logits, loss), the head tied to the embedding."""

    def __init__(self, *, cap=None, tied=True, functional=False, bias=False, offset=False):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.h = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, 0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=bias)
        if tied:
            self.head.weight = self.wte.weight
        self.cap, self.functional = cap, functional
        self.register_buffer("offset", torch.randn(1, VOCABULARY) if offset else None)

    def forward(self, tokens, targets=None):
        hidden = self.wte(tokens)
        for block in self.h:
            hidden = block(hidden)
        logits = F.linear(hidden, self.wte.weight) if self.functional else self.head(hidden)
        if self.offset is not None:
            logits = logits + self.offset
        if self.cap:
            logits = self.cap * torch.tanh(logits / self.cap)
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


def inside(module, batch):
    return module(*batch)[1]


def flat(module, batch, **how):
    return F.cross_entropy(module(batch[0])[0].flatten(0, 1), batch[1].flatten(), ignore_index=-1, **how)


def shifted(module, batch):
    logits = module(batch[0])[0].float()[..., :-1, :].contiguous()
    return F.cross_entropy(logits.view(-1, VOCABULARY), batch[1][..., :-1].reshape(-1), ignore_index=-1)


def classes_first(module, batch):
    logits = module(batch[0])[0].to(batch[1].device)
    return F.cross_entropy(logits.transpose(1, 2), batch[1], ignore_index=-1)


def reading(module, batch):
    logits, loss = module(*batch)
    (logits.argmax(-1) == batch[1]).float().mean()
    return loss


def step(loss=inside, **options) -> Workload:
    """A step on uneven targets: each sequence has one token less than the one before that counts."""
    tokens = torch.randint(VOCABULARY, (BATCH, TIME))
    targets = torch.roll(tokens, -1, 1)
    for row in range(BATCH):
        targets[row, TIME - 3 * row - 1 :] = -1
    return Workload(module=Nano(**options), batch=(tokens, targets), loss=loss, blocks=("h.0", "h.1"))


def classifier() -> Workload:
    module = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(3)), nn.Linear(16, 40))
    batch = torch.randn(8, 16), torch.randint(40, (8,))
    return Workload(module=module, batch=batch, loss=lambda module, batch: F.cross_entropy(module(batch[0]), batch[1]))


STEPS = {
    "tied": step,
    "own head with a bias": partial(step, tied=False, bias=True),
    "a bias that is a buffer, as BART's": partial(step, offset=True),
    "softcap": partial(step, cap=3.0),
    "functional head": partial(step, functional=True),
    "loss outside": partial(step, flat),
    "shifted, in float": partial(step, shifted),
    "classes first": partial(step, classes_first),
    "sum": partial(step, partial(flat, reduction="sum")),
    "smoothed": partial(step, partial(flat, label_smoothing=0.1)),
    "classifier": classifier,
}
