"""A user's own operator, which has a CPU kernel alone: a trace cannot know what it returns."""

import torch
from torch import nn

LIBRARY = torch.library.Library("users", "FRAGMENT")
if not hasattr(torch.ops.users, "twice"):
    LIBRARY.define("twice(Tensor x) -> Tensor")
    LIBRARY.impl("twice", lambda x: 2 * x, "CPU")


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.last(x) + torch.ops.users.twice(self.first(x).detach())


def make():
    return Doubled(), torch.randn(4, 8), lambda out: out.sum()
