"""Bytes that an operator takes at once, and the requests that they are the sum of: knows nothing of operators."""

from __future__ import annotations

from profiler.trace.pool import GRANULE, round_up


class Requests(int):
    """A sum of requests, in the order in which they are made, which sums of it with others keep.

    The allocator gives each a block of its own, which one request for the sum would not have.
    """

    parts: tuple[int, ...]

    def __new__(cls, *parts: int) -> Requests:
        made = super().__new__(cls, sum(parts))
        made.parts = tuple(part for part in parts if part)
        return made

    def __add__(self, other: int) -> Requests:
        return Requests(*self.parts, *parts_of(other))

    def __radd__(self, other: int) -> Requests:
        return Requests(*parts_of(other), *self.parts)

    def __mul__(self, times: int) -> Requests:
        return Requests(*self.parts * times)

    def __rmul__(self, times: int) -> Requests:
        return self * times


def request(nbytes: int) -> Requests:
    """One request, as the allocator rounds it up."""
    return Requests(round_up(nbytes, GRANULE))


def parts_of(nbytes: int) -> tuple[int, ...]:
    """The requests of a sum; a plain number is one."""
    return nbytes.parts if isinstance(nbytes, Requests) else (nbytes,)
