"""Finds two ways in which plain PyTorch computes wrong gradients in silence, and runs a step without them.

A custom autograd Function may keep a tensor as an attribute of its ctx: if that is written over before the backward, no
version counter is checked, as it is for `ctx.save_for_backward`. And autocast keeps the cast of a weight for its later
uses, also if the weight is then written where gradients are off, or (in older PyTorch) if the cast was made there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from profiler.core.own_thread import replaced
from profiler.training.workload import tensors

CACHED = (
    "autocast keeps the cast of a weight for its later uses, though it was made before the weight was written, or "
    "where gradients are off; torch.autocast(..., cache_enabled=False) casts it each time"
)


class SilentErrors:
    """What may be wrong in a step without checkpointing that runs within `watching`."""

    def __init__(self) -> None:
        self.overwritten: dict[str, None] = {}  # Functions that kept a tensor on ctx that was then written over
        self.is_cast_unseen = False  # whether a weight may have been cast under autocast where gradients are off

    def cause(self) -> str | None:
        """Return in words what may be wrong; None if nothing was seen."""
        if self.overwritten:
            names = ", ".join(self.overwritten)
            text = "as an attribute of ctx that is written over before the backward"
            return f"{names} keeps a tensor {text}; ctx.save_for_backward would refuse it"
        return CACHED if self.is_cast_unseen else None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look for both ways in the step that runs in the block."""

        def kept(node: Any, name: str) -> None:
            self._see_grad_off()  # within its forward
            versions = [(weakref.ref(tensor), tensor._version) for tensor in _on_ctx(node)]

            def compare(gradients: object) -> None:
                if any((tensor := there()) is not None and tensor._version != version for there, version in versions):
                    self.overwritten[name] = None

            if versions:
                node.register_prehook(compare)

        enter = torch.no_grad.__enter__

        def entered(block: Any) -> None:
            self._see_grad_off()
            enter(block)

        with _functions(kept), replaced(torch.no_grad, __enter__=entered):
            yield

    def _see_grad_off(self) -> None:
        kinds = ("cpu", *(["cuda"] if torch.cuda.is_initialized() else []))
        if torch.is_autocast_cache_enabled() and any(map(torch.is_autocast_enabled, kinds)):
            self.is_cast_unseen = True


@contextmanager
def mended() -> Iterator[None]:
    """Run the step in the block so that nothing is written over on ctx, and without autocast's cache."""

    def copied(node: Any, name: str) -> None:
        for attribute, value in list(vars(node).items()):
            if isinstance(value, torch.Tensor) and any(value is tensor for tensor in _on_ctx(node)):
                setattr(node, attribute, value.detach().clone())

    enter = torch.autocast.__enter__

    def entered(block: Any) -> Any:
        result = enter(block)  # type: ignore[no-untyped-call]
        torch.set_autocast_cache_enabled(False)  # its exit restores it
        return result

    with ExitStack() as stack:
        stack.enter_context(_functions(copied))
        stack.enter_context(replaced(torch.autocast, __enter__=entered))
        yield


def _on_ctx(node: Any) -> list[torch.Tensor]:
    """Return the tensors that are attributes of a ctx, but for parameters, which only an optimizer writes."""
    held = tensors(dict(getattr(node, "__dict__", {})))
    return [tensor for tensor in held if not isinstance(tensor, torch.nn.Parameter) and not tensor.is_inference()]


@contextmanager
def _functions(look: Callable[[Any, str], None]) -> Iterator[None]:
    """Call `look` with the node and the name of each custom Function that is applied in the block."""
    apply = torch.autograd.Function.__dict__["apply"]

    def applied(cls: Any, *arguments: Any, **keywords: Any) -> Any:
        output = apply.__get__(None, cls)(*arguments, **keywords)
        nodes = (tensor.grad_fn for tensor in tensors(output))
        node = next((node for node in nodes if getattr(type(node), "_forward_cls", None) is cls), None)
        if node is not None and not cls.__module__.startswith("torch."):
            look(node, cls.__name__)
        return output

    with mock.patch.object(torch.autograd.Function, "apply", classmethod(applied)):
        yield
