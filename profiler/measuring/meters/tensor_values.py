"""Values of tensors: copies on the host and their digests; differences, on the device that has the arithmetic."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

CHUNK = 2**24  # values that are reduced at a time: a GPU that the step leaves full has room for 0.5 GiB of float64
HOST = torch.device("cpu")


def difference(
    reference: torch.Tensor | None,
    other: torch.Tensor | None,
    *,
    least_scale: float = 0.0,
    device: torch.device = HOST,
) -> float:
    """Return the relative difference of two tensors, from 0 to 2, reduced on the device.

    That is the largest absolute difference over the largest absolute value of both, or over `least_scale` if that is
    larger. It is 2 if it is not finite, one tensor is missing, or the shapes differ.
    """
    if reference is None or other is None:
        return 0.0 if reference is other else 2.0
    if reference.shape != other.shape:
        return 2.0
    reference, other = dense(reference), dense(other)
    if torch.equal(bytes_of(reference), bytes_of(other)):
        return 0.0
    sizes, apart = [], []
    for part, other_part in zip(_chunks(reference, device), _chunks(other, device), strict=True):
        wide, other_wide = widest(part), widest(other_part)
        sizes += [wide.abs().max(), other_wide.abs().max()]
        apart.append((wide - other_wide).abs().max())
    relative = float(torch.stack(apart).max() / torch.stack(sizes).max().clamp(min=least_scale))
    return relative if math.isfinite(relative) else 2.0


def _chunks(tensor: torch.Tensor, device: torch.device) -> Iterator[torch.Tensor]:
    """Yield the values on the device, a part at a time."""
    return (part.to(device) for part in tensor.flatten().split(CHUNK))


def equal_bits(tensors: Mapping[str, torch.Tensor | None], others: Mapping[str, torch.Tensor | None]) -> bool:
    """Whether both have the same names, in order, each with a tensor of the same shape, type and bits, or with none."""

    def equal(tensor: torch.Tensor | None, other: torch.Tensor | None) -> bool:
        if tensor is None or other is None:
            return tensor is other
        are_alike = tensor.shape == other.shape and tensor.dtype == other.dtype
        return are_alike and torch.equal(bytes_of(dense(tensor)), bytes_of(dense(other)))

    return list(tensors) == list(others) and all(equal(tensors[name], others[name]) for name in tensors)


def largest(tensor: torch.Tensor, *, device: torch.device = HOST) -> float:
    """Return the largest finite absolute value, found on the device; 0 if there is none."""
    sizes = [part.abs() for part in _chunks(dense(tensor), device) if part.numel()]
    return max((float(size.masked_fill(~size.isfinite(), 0).max()) for size in sizes), default=0.0)


def widest(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain copy on the host: a sharded tensor is gathered whole, a subclass becomes a torch.Tensor.

    So tensors of a user's class are compared by their values, not by how the class overrides operators. For a wrapper
    subclass, which holds other tensors instead of values, those are copied one after the other.
    """
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    if is_traceable_wrapper_subclass(whole):
        names, _ = whole.__tensor_flatten__()
        parts = [copied(getattr(whole, name)).flatten() for name in names]
        return torch.cat([torch.view_as_real(part).flatten() if part.is_complex() else part for part in parts])
    plain = whole.detach()
    return (
        dense(plain if type(plain) is torch.Tensor else plain.as_subclass(torch.Tensor))
        .to("cpu", copy=True)
        .contiguous()
    )


def dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_dense() if tensor.is_sparse else tensor


def digest(tensors: Sequence[torch.Tensor]) -> str:
    """Return a digest of the values of tensors, in order."""
    return digest_of({str(number): copied(tensor) for number, tensor in enumerate(tensors)})


def digest_of(tensors: Mapping[str, torch.Tensor | None]) -> str:
    """Return a digest of the names and values of tensors on the host, in order: 128 bits, in hexadecimal."""
    digest = Digest()
    digest.add(tensors)
    return digest.text()


class Digest:
    """Computes the digest of `digest_of` for tensors that are added one after the other."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, tensors: Mapping[str, torch.Tensor | None]) -> None:
        """Add names and values, in order."""
        for name, tensor in tensors.items():
            self._hash.update(f"{name} {None if tensor is None else (tuple(tensor.shape), tensor.dtype)}".encode())
            if tensor is not None:
                self._hash.update(bytes_of(dense(tensor)).numpy().data)

    def text(self) -> str:
        """Return the digest of all that was added."""
        return self._hash.hexdigest()


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten().view(torch.uint8)  # (bytes,)
