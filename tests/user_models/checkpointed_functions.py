"""Functions under checkpoints, outside of all modules."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def log_likelihood(logits, targets):
    return logits.gather(1, targets[:, None]).squeeze(1) - logits.logsumexp(1)


class Head(nn.Module):
    """What is computed again needs nothing but what is there: it frees nothing."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 512)

    def forward(self, inputs, targets):
        pairs = zip(self.head(inputs).split(16), targets.split(16), strict=True)
        chunks = [checkpoint(log_likelihood, *pair, use_reentrant=False) for pair in pairs]
        return -torch.cat(chunks).mean()


def head():
    return Head(), (torch.randn(64, 16), torch.randint(0, 512, (64,)))
