"""Layers whose products are of slices: their bias is added after, in place but where a dispatch mode is on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


def make(batch_size: int = 8, layers: int = 6) -> tuple[nn.Module, Any, Callable[..., torch.Tensor]]:
    blocks = (nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(layers))
    net = nn.Sequential(nn.Embedding(1000, 256), *blocks, nn.Linear(256, 1000))
    words = torch.randint(0, 1000, (batch_size, 128))
    return net, (words, words), lambda output, target: F.cross_entropy(output.flatten(0, 1), target.flatten())
