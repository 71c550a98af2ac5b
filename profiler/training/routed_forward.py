"""A block's forward that computes only where its run does: knows nothing of checkpoints or of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Detour:
    """`inside` computes the block, in its run; where the module itself calls the block, `outside` is called instead.

    No closure, so that a deep copy of the module runs the copied blocks. `is_alone`: the run is this block.
    """

    def __init__(
        self, inside: Callable[..., Any], outside: Callable[..., Any], *, is_inside: Callable[[], bool], is_alone: bool
    ) -> None:
        self.inside, self.outside = inside, outside
        self.is_alone = is_alone
        self._is_inside = is_inside

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return (self.inside if self._is_inside() else self.outside)(*arguments, **keywords)
