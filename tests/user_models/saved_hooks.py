"""A model that packs what autograd saves by hooks of its own: `torch.autograd.graph.saved_tensors_hooks`."""

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

HOOKS = {
    "half": lambda: (torch.Tensor.half, torch.Tensor.float),
    "pinned_host": lambda: (
        lambda tensor: torch.empty(tensor.shape, pin_memory=tensor.is_cuda).copy_(tensor, non_blocking=True),
        lambda packed: packed.cuda() if torch.cuda.is_available() else packed,
    ),
    "quantized": lambda: (
        lambda tensor: torch.quantize_per_tensor(tensor.detach(), 0.1, 0, torch.qint8),
        torch.dequantize,
    ),
}


class Hooked(nn.Module):
    """Layers whose results are squared: each result is saved, and is all that is saved of them besides."""

    def __init__(self, width: int, layers: int, hooks: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), Square()) for _ in range(layers))
        self.hooks = hooks

    def forward(self, x):
        if self.hooks == "recomputed":
            for layer in self.layers:
                x = Recomputed(layer)(x)
            return x
        with save_on_cpu() if self.hooks == "save_on_cpu" else saved_tensors_hooks(*HOOKS[self.hooks]()):
            for layer in self.layers:
                x = layer(x)
        return x


class Square(nn.Module):
    def forward(self, x):
        return x.square()


class Recomputed:
    """Calls a layer that saves its input alone: what the square saves is dropped, and computed from it again."""

    def __init__(self, layer):
        self.linear, self.square = layer

    def __call__(self, x):
        hidden, shape = self.linear(x), x.shape

        def pack(tensor):
            return None if tensor.shape == shape else tensor

        def unpack(packed):
            return self.linear(x).detach() if packed is None else packed

        with saved_tensors_hooks(pack, unpack):
            return self.square(hidden)


def make(batch_size: int = 64, width: int = 128, layers: int = 3, hooks: str = "half"):
    return Hooked(width, layers, hooks), torch.randn(batch_size, width), lambda out: out.sum()
