"""Training steps that ask a GPU for values, for sizes in most: `python unknown_values.py NAME`.

With `--by-hand` each size is put in: it comes from the CPU, and no operator reads one of the GPU.
"""

import math
import sys

import torch
from torch import nn

BY_HAND = "--by-hand" in sys.argv
ROWS, WIDTH, EXPERTS = 512, 64, 4
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4096), nn.ReLU(), nn.Linear(4096, WIDTH))

    def forward(self, tokens, host):
        return STEPS[sys.argv[1]](self, tokens, host)


def put_in(make, tokens, host):
    """What `make` makes of the tokens: on the GPU, or by hand on the CPU."""
    if not BY_HAND:
        return make(tokens)
    made = make(host)
    return tuple(one.to(tokens.device) for one in made) if isinstance(made, tuple) else made.to(tokens.device)


def masked(model, tokens, host):
    mask = tokens > 300
    rows = put_in(lambda one: (one > 300).nonzero().squeeze(1), tokens, host)
    model.kept = (mask, rows)  # autograd keeps one of them
    return model.wide(model.embed(tokens)[rows if BY_HAND else mask])


def unique(model, tokens, host):
    kinds, places = put_in(lambda one: torch.unique(one, return_inverse=True), tokens, host)
    if BY_HAND:  # the GPU's result keeps as much memory as its input
        kinds = torch.empty_like(tokens)[: len(kinds)].copy_(kinds)
    return model.wide(model.embed(kinds)).index_select(0, places)


def routed(model, tokens, host):
    """To one expert each: which one no CPU can know; by hand to all of them in turn."""
    hidden = model.embed(tokens)
    _, chosen = model.router(hidden).topk(1, dim=-1)
    if BY_HAND:
        chosen = (torch.arange(ROWS) % EXPERTS).view(ROWS, 1)
    outputs = []
    for expert in range(EXPERTS):
        rows = (chosen.squeeze(1) == expert).nonzero().squeeze(1).to(tokens.device)
        outputs.append(model.wide(hidden[rows]))
    return torch.cat(outputs)


def flag(model, tokens, host):
    outputs = model.wide(model.embed(tokens))
    while not (outputs > 0).any():
        outputs = outputs + 1
    return outputs


def caught(model, tokens, host):
    outputs = model.wide(model.embed(tokens))
    rows = (outputs[:, 0] > 0).nonzero().squeeze(1)
    try:
        return torch.empty(len(rows), 1 << 24, device="cuda")
    except torch.OutOfMemoryError:
        return outputs[:1]


def checks(model, tokens, host):
    outputs = model.wide(model.embed(tokens))
    loss = outputs.square().mean()
    assert torch.isfinite(loss)
    assert not torch.isnan(outputs).any()
    assert not (outputs != outputs).any()
    assert loss < 10
    assert 0 < loss.item() == loss.item() < 1e-6
    assert "nan" not in str(outputs)
    return outputs


def psnr(model, tokens, host):
    error = model.wide(model.embed(tokens)).square().mean()
    print(10 * math.log10(1 / error.item()), math.log(error.cpu()))
    while max(error.item(), error.cpu()) > 1e-12:
        assert not (error > 1).cpu()
    assert error.item() > 1


STEPS = {step.__name__: step for step in (masked, unique, routed, flag, caught, checks, psnr)}


model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    host = torch.randint(1000, (ROWS,))
    loss = model(host.cuda(), host).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("max memory allocated", torch.cuda.max_memory_allocated())
