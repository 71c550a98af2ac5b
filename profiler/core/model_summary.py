"""What the blocks of a model look like, as plain data: knows nothing of torch or of screens."""

from __future__ import annotations

import msgspec


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One block, as one forward saw it."""

    name: str
    kind: str  # its class
    num_parameters: int
    output: str  # the shapes of what it returns; "" where it was not run
    feeds_next: bool | None = None  # whether its output is all that the next one takes that is new; None: not known


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """A model's blocks in order, or why they cannot be had."""

    model: str
    num_parameters: int
    batch_size: int | None
    blocks: tuple[Block, ...]
    remark: str | None = None  # why it is not known what feeds what
