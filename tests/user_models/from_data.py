"""One small network, and batches that are taken from data as training scripts take them."""

from __future__ import annotations

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROWS, BATCH, WIDTH, KINDS = 256, 32, 64, 10


def network(kinds=KINDS, linear=nn.Linear):
    blocks = [nn.Sequential(linear(*[WIDTH][: linear is nn.Linear], WIDTH), nn.ReLU()) for _ in range(4)]
    return nn.Sequential(*blocks, nn.Linear(WIDTH, kinds))


def rows():
    return TensorDataset(torch.randn(ROWS, WIDTH), torch.arange(ROWS) % KINDS)


def statistics():
    x, y = rows().tensors
    x = x * 3 + 7
    mean = x.mean().item()
    assert 6 < mean < 8
    assert len(set(torch.randint(0, KINDS, (ROWS,)).tolist())) == KINDS
    assert numpy.bincount(y.numpy()).sum() == ROWS
    return (x - mean)[y < KINDS // 2][:BATCH].clone(), y[torch.nonzero(y >= 0).squeeze(1)][:BATCH].clone()


BATCHES = {
    "drawn": lambda: (torch.randn(BATCH, WIDTH), torch.randint(0, KINDS, (BATCH,))),
    "shuffled": lambda: next(iter(DataLoader(rows(), BATCH, shuffle=True))),
    "workers": lambda: next(iter(DataLoader(rows(), BATCH, shuffle=True, num_workers=2, pin_memory=True))),
    "statistics": statistics,
}


def make(source="drawn"):
    return network(), BATCHES[source](), nn.CrossEntropyLoss()


def lazy():
    """The blocks have their sizes from a first forward."""
    x, y = BATCHES["shuffled"]()
    module = network(linear=nn.LazyLinear)
    module(x)
    return module, (x, y), nn.CrossEntropyLoss()


def assigned():
    """The weights come from a file, in place of those on the device meta."""
    with torch.device("meta"):
        module = network()
    shapes = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    weights = {name: torch.from_numpy(numpy.ones(shape, "float32")) for name, shape in shapes.items()}
    module.load_state_dict(weights, assign=True)
    return module, BATCHES["shuffled"](), nn.CrossEntropyLoss()


def saved(path):
    """The batch, and how many kinds there are, are read from a file."""
    x, y = torch.load(path)
    return network(int(y.max()) + 1), (x[:BATCH], y[:BATCH]), nn.CrossEntropyLoss()
