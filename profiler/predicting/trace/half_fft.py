"""Runs Fourier transforms in half precision, which CUDA's kernels take and the CPU's stand-ins refuse.

The steps are those of aten/src/ATen/native/SpectralOps.cpp after it has promoted its input: bfloat16 to complex64,
float16 to complex32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from profiler.core.own_thread import replaced

aten = torch.ops.aten
COMPLEX = {torch.float16: torch.complex32, torch.complex32: torch.complex32}
if hasattr(torch, "bcomplex32"):  # PyTorch without that type refuses bfloat16 on CUDA, too
    COMPLEX[torch.bfloat16] = torch.complex64
Dims = int | Sequence[int] | None
ONE, TWO = -1, (-2, -1)  # default dimensions; an n-dimensional transform has all
KINDS: dict[str, tuple[str, bool, Dims]] = {  # by name: kind of transform, whether forward, default dimensions
    "fft": ("one", True, ONE),
    "ifft": ("one", False, ONE),
    "rfft": ("real", True, ONE),
    "ihfft": ("real", False, ONE),
    "irfft": ("to real", False, ONE),
    "hfft": ("to real", True, ONE),
    "fft2": ("complex", True, TWO),
    "ifft2": ("complex", False, TWO),
    "rfft2": ("real", True, TWO),
    "irfft2": ("to real", False, TWO),
    "fftn": ("complex", True, None),
    "ifftn": ("complex", False, None),
    "rfftn": ("real", True, None),
    "irfftn": ("to real", False, None),
}


@contextmanager
def as_on_cuda() -> Iterator[None]:
    """Let the functions of torch.fft take half precision within."""
    with ExitStack() as stack:
        for name, kind in KINDS.items():
            function = partial(_transform, getattr(torch.fft, name), *kind)
            stack.enter_context(replaced(torch.fft, **{name: function}))
        yield


def _transform(  # noqa: PLR0917  torch's signature
    own: Callable[..., torch.Tensor],
    kind: str,
    forward: bool,
    default: Dims,
    input: torch.Tensor,
    size: Dims = None,
    dim: Any = "default",
    norm: str | None = None,
    **named: Any,
) -> torch.Tensor:
    size = named.pop("n", named.pop("s", size))
    dim = default if isinstance(dim, str) else dim
    if input.dtype not in COMPLEX or named:
        return own(input, size, dim, norm, **named)
    dims, sizes = _sizes(input, size, dim)
    if kind == "one":
        kind = "complex" if input.is_complex() else "two-sided"
    values = input if kind in ("real", "two-sided") else input.to(COMPLEX[input.dtype])
    if kind == "to real" and (size is None or _listed(size)[-1] == -1):
        sizes[-1] = 2 * (input.shape[dims[-1]] - 1)
    if COMPLEX[input.dtype] == torch.complex32 and any(length & (length - 1) for length in sizes):
        words = "only supports dimensions whose sizes are powers of two when computing in half precision"
        raise RuntimeError(f"cuFFT {words}, but got a signal size of{sizes}")
    return _computed(kind, values, dims, sizes, forward=forward, norm=norm)


def _computed(
    kind: str, values: torch.Tensor, dims: list[int], sizes: list[int], *, forward: bool, norm: str | None
) -> torch.Tensor:
    """Return the kernel's result for `values`, cut or padded to the sizes of the transform."""
    scale = 1 if norm == "ortho" else 2 if (norm == "forward") == forward else 0  # fft_norm_mode
    taken = [*sizes[:-1], sizes[-1] // 2 + 1] if kind == "to real" else sizes
    values = _resized(values, dims, taken)
    out: torch.Tensor
    if kind == "to real":
        out = aten._fft_c2r(values.conj() if forward else values, dims, scale, sizes[-1])
    elif kind == "complex":
        out = aten._fft_c2c(values, dims, scale, forward)
    else:
        out = aten._fft_r2c(values, dims, scale, kind == "real")
        out = out if forward else out.conj()
    return out


def _listed(dims: int | Sequence[int]) -> list[int]:
    return [dims] if isinstance(dims, int) else list(dims)


def _sizes(input: torch.Tensor, size: Dims, dim: Dims) -> tuple[list[int], list[int]]:
    """Return the dimensions that are transformed, and the size of each."""
    if dim is None:
        dim = range(input.dim() if size is None else len(_listed(size)))
        dim = [place - len(dim) for place in dim]
    dims = [place % input.dim() for place in _listed(dim)]
    asked = [-1] * len(dims) if size is None else _listed(size)
    return dims, [input.shape[place] if length == -1 else length for place, length in zip(dims, asked, strict=True)]


def _resized(values: torch.Tensor, dims: list[int], sizes: list[int]) -> torch.Tensor:
    """Return the values cut, or padded with zeros, to `sizes`."""
    padding = [0] * (2 * values.dim())
    for dim, size in zip(dims, sizes, strict=True):
        padding[2 * (values.dim() - dim) - 1] = max(0, size - values.shape[dim])
        values = values.narrow(dim, 0, size) if values.shape[dim] > size else values
    return aten.constant_pad_nd(values, padding) if any(padding) else values
