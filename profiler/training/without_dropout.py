"""A step without dropout, for comparing steps that draw their masks in other shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from torch.nn import functional as F

DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
ATTENTION = "scaled_dot_product_attention"
PLACE = 4  # of `dropout_p` among its arguments


@contextmanager
def without_dropout(met: set[str]) -> Iterator[None]:
    """Switch the dropout of torch.nn.functional off, modules' and attention's included; add what was met to `met`."""

    def off(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(own)
        def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
            met.update([name] if p and training else [])
            return own(input, p, False, inplace)

        @wraps(own)
        def attention(*arguments: Any, **keywords: Any) -> Any:
            given = arguments[PLACE] if len(arguments) > PLACE else keywords.get("dropout_p", 0.0)
            met.update([name] if given else [])
            if len(arguments) > PLACE:
                arguments = (*arguments[:PLACE], 0.0, *arguments[PLACE + 1 :])
            return own(*arguments, **({**keywords, "dropout_p": 0.0} if "dropout_p" in keywords else keywords))

        return attention if name == ATTENTION else dropout

    with ExitStack() as stack:  # in all threads, since a backward on a GPU recomputes in one of its own
        for name in (*DROPOUTS, ATTENTION):
            stack.enter_context(patch.object(F, name, off(name, getattr(F, name))))
        yield
