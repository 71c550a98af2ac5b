"""Which block each module of a trace belongs to: knows nothing of what is held."""

from __future__ import annotations

from collections.abc import Callable

OUTSIDE = ""  # of all blocks: embeddings, head, loss, optimizer


def stage_of(blocks: tuple[str, ...]) -> Callable[[str], str]:
    """A function from a module's full name to the block that it is or is in; OUTSIDE where it is in none."""
    found = {"": OUTSIDE} | {block: block for block in blocks}

    def stage(module: str) -> str:
        if module not in found:
            found[module] = stage(module.rpartition(".")[0])
        return found[module]

    return stage
