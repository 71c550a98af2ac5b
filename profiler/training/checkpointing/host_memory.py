"""Inputs of checkpointed segments that wait in pinned host memory: sent and fetched on a stream of their own.

Where a copy must have landed and where its fetch begins are fixed by stage, never by time, so that the bytes of the
device do not depend on times. Buffers of the device are allocated on the stream that computes; events order the copies.
All here is plain PyTorch, since code that is emitted for a plan contains it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree


class HostMemory:
    """Host buffers, kept from step to step, and the stream on which tensors are copied there and back."""

    def __init__(self) -> None:
        self.nbytes = 0  # of all buffers; a pinned one takes a power of two
        self._free: dict[tuple[Any, ...], list[torch.Tensor]] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def __reduce__(self) -> Any:
        """A copy of the module has buffers and streams of its own."""
        return HostMemory, ()

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a free buffer for the tensor, or a new one."""
        free = self._free.setdefault(_layout(tensor), [])
        if free:
            return free.pop()
        is_pinned = self.stream(tensor.device) is not None
        self.nbytes += 1 << (tensor.nbytes - 1).bit_length() if is_pinned else tensor.nbytes
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, pin_memory=is_pinned)

    def give_back(self, buffer: torch.Tensor) -> None:
        """Keep a buffer for the next tensor of its layout."""
        self._free[_layout(buffer)].append(buffer)

    def stream(self, device: torch.device) -> torch.cuda.Stream | None:
        """Return the stream of all copies of a device, in order; None where they are done at once."""
        if device.type != "cuda" or not torch.cuda.is_initialized():  # the CPU, or a device that is only traced
            return None
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    def copy(self, to: torch.Tensor, source: torch.Tensor, device: torch.device) -> torch.cuda.Event | None:
        """Begin a copy after all that was computed until now; return the event of its end."""
        stream = self.stream(device)
        if stream is None:
            to.copy_(source)
            return None
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            to.copy_(source, non_blocking=True)
            event: torch.cuda.Event = stream.record_event()
        return event


class Sent:
    """A tensor in host memory, for as long as a graph refers to it."""

    def __init__(self, memory: HostMemory, tensor: torch.Tensor) -> None:
        self._memory = memory
        self._tensor: torch.Tensor | None = tensor.detach()  # its memory is not used again before the copy has landed
        self._device = tensor.device
        self._host = memory.take(tensor)
        self._landed = memory.copy(self._host, self._tensor, self._device)
        self._fetched: tuple[torch.Tensor, torch.cuda.Event | None] | None = None

    def land(self) -> None:
        """Free the device's tensor, once its copy has ended."""
        _wait(self._landed, self._device)
        self._tensor = None

    def fetch(self) -> None:
        """Begin to copy the tensor back, unless that has begun."""
        if self._fetched is None:
            made = torch.empty_strided(
                self._host.shape, self._host.stride(), dtype=self._host.dtype, device=self._device
            )
            self._fetched = made, self._memory.copy(made, self._host, self._device)

    def back(self) -> torch.Tensor:
        """Return the tensor on its device; a second backward of its graph fetches it again."""
        self.fetch()
        assert self._fetched is not None
        (made, event), self._fetched = self._fetched, None
        _wait(event, self._device)
        return made

    def __del__(self) -> None:
        """Give the buffer back: what is sent next waits, on the same stream, for copies that still read it."""
        if "_host" in self.__dict__:  # there was memory for it
            self._memory.give_back(self._host)


class OffloadedInput:
    """Calls a segment's checkpoint such that the first argument waits in host memory until the backward.

    It has landed where the segment's forward ends. Its fetch begins where the gradient of the output of the block
    `fetched_at` arrives; where none does, when the segment is recomputed.
    """

    def __init__(self, memory: HostMemory, fetched_at: nn.Module, *, least: int) -> None:
        self._memory, self._least = memory, least
        self._sent: Sent | None = None  # in a forward that has not reached that block
        fetched_at.register_forward_hook(self._watch)

    def __call__(
        self, checkpoint: Callable[..., Any], function: Callable[..., Any], *given: Any, **keywords: Any
    ) -> Any:
        if not (given and torch.is_grad_enabled() and self._is_sent(given[0])):
            return checkpoint(function, *given, **keywords)
        sent: list[Sent] = []
        place = _place(given[0])

        def pack(saved: torch.Tensor) -> Any:
            if sent or _place(saved) != place:
                return saved  # another argument, or a result that a selective checkpoint keeps
            sent.append(Sent(self._memory, saved))
            return sent[0]

        with saved_tensors_hooks(pack, lambda packed: packed.back() if isinstance(packed, Sent) else packed):
            value = checkpoint(function, *given, **keywords)
        for one in sent:
            one.land()
            self._sent = one
        return value

    def _is_sent(self, tensor: Any) -> bool:
        """Whether a tensor is large, and is not a leaf, which stays on the device whatever is done here."""
        if not isinstance(tensor, torch.Tensor) or tensor.is_leaf or tensor.nbytes < self._least:
            return False
        return torch.empty_like(tensor, device="meta").stride() == tensor.stride()  # dense

    def _watch(self, block: nn.Module, given: Any, output: Any) -> None:
        """Fetch what was sent when the gradient of this output arrives."""
        outputs = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if self._sent is not None and outputs and torch._C._current_graph_task_id() == -1:  # not in a recompute
            waiting, self._sent = [self._sent], None  # the hook lets go of it, since a loss may keep its graph
            outputs[0].register_hook(lambda gradient: waiting.pop().fetch() if waiting else None)


def _wait(event: torch.cuda.Event | None, device: torch.device) -> None:
    if event is not None:
        torch.cuda.current_stream(device).wait_event(event)


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), *_layout(tensor)


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype
