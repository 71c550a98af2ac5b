"""Definitions that the rules of CUDA's kernels share: requests for bytes, tensor sizes, dtypes and capabilities."""

from __future__ import annotations

import torch

from profiler.core.allocator_history import GRANULE
from profiler.predicting.trace.allocator import round_up

HALF = (torch.float16, torch.bfloat16)
FLOAT = torch.float32.itemsize
VOLTA, TURING, AMPERE = (7, 0), (7, 5), (8, 0)  # compute capabilities
WARP = 32  # threads


class Requests(int):
    """The sum of the bytes of several requests, which stay separate and in order when sums are added.

    The allocator gives each request its own block, so the sum alone does not determine the blocks.
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
    """The bytes that were measured for one call; those for other sizes are unknown."""


def request(nbytes: int) -> Requests:
    """Return one request, rounded up to the allocator's granule."""
    return Requests(round_up(nbytes, GRANULE))


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of all elements of a tensor, whatever the size of its storage."""
    return tensor.numel() * tensor.itemsize


def tensor_request(tensor: torch.Tensor) -> Requests:
    """Return the request for a dense copy of a tensor."""
    return request(tensor_bytes(tensor))


def ceil_div(number: int, by: int) -> int:
    """Return the quotient, rounded up."""
    return -(-number // by)


def parts_of(nbytes: int) -> tuple[int, ...]:
    """Return the requests in a sum; a plain number is a single request."""
    return nbytes.parts if isinstance(nbytes, Requests) else (nbytes,)
