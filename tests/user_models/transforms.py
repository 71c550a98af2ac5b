"""A layer and Fourier transforms of what it gives, of which every length is a power of two."""

import torch
from torch import nn

CALLS = {
    "rfft": lambda x: torch.fft.rfft(x),  # by its name, which a trace looks up anew
    "fft": lambda x: torch.fft.fft(x),
    "ifft": lambda x: torch.fft.ifft(x, norm="ortho"),
    "fft2": lambda x: torch.fft.fft2(x),
    "padded": lambda x: torch.fft.irfft(torch.fft.rfft(x, n=128) * 2, n=128),
    "planes": lambda x: torch.fft.irfft2(torch.fft.rfft2(x)),
}


class Transformed(nn.Module):
    def __init__(self, call: str) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.call = call

    def forward(self, x):
        out = CALLS[self.call](self.layer(x))
        return (torch.view_as_real(out.resolve_conj()) if out.is_complex() else out).float().square().mean()


def make(batch_size: int = 64, call: str = "rfft"):
    return Transformed(call), torch.randn(batch_size, 64, 64)
