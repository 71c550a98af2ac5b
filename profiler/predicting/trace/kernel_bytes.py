"""The words that the rules of CUDA's kernels share: requests for bytes, sizes of tensors, types and capabilities."""

from __future__ import annotations

import torch

from profiler.core.allocator_history import GRANULE
from profiler.predicting.trace.allocator import round_up

HALF = (torch.float16, torch.bfloat16)
FLOAT = torch.float32.itemsize
VOLTA, TURING, AMPERE = (7, 0), (7, 5), (8, 0)  # compute capabilities
WARP = 32  # threads


class Requests(int):
    """The bytes of several requests, which keep their order when they are added to others.

    The allocator gives each request a block of its own, so that their sum alone would not tell the blocks.
    """

    parts: tuple[int, ...]

    def __new__(cls, *parts: int) -> Requests:
        requests = super().__new__(cls, sum(parts))
        requests.parts = tuple(part for part in parts if part)
        return requests

    def __add__(self, nbytes: int) -> Requests:
        return Requests(*self.parts, *parts_of(nbytes))

    def __radd__(self, nbytes: int) -> Requests:
        return Requests(*parts_of(nbytes), *self.parts)

    def __mul__(self, times: int) -> Requests:
        return Requests(*self.parts * times)

    def __rmul__(self, times: int) -> Requests:
        return self * times


class Measured(int):
    """The bytes that were read of one call: what other sizes would take is not known."""


def request(nbytes: int) -> Requests:
    """One request, rounded up to the allocator's granule."""
    return Requests(round_up(nbytes, GRANULE))


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Returns the bytes of all elements of a tensor, whatever its storage has."""
    return tensor.numel() * tensor.itemsize


def tensor_request(tensor: torch.Tensor) -> Requests:
    """Returns the request for a dense copy of a tensor."""
    return request(tensor_bytes(tensor))


def ceil_div(number: int, by: int) -> int:
    """Returns the quotient, rounded up."""
    return -(-number // by)


def parts_of(nbytes: int) -> tuple[int, ...]:
    """The requests of a sum; a plain number is one."""
    return nbytes.parts if isinstance(nbytes, Requests) else (nbytes,)
