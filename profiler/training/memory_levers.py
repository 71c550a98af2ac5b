"""Levers that change where a step's bytes are, and when: host memory, segments that grow, micro-batches."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import wraps
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import msgspec
import torch
from torch import nn
from torch._guards import detect_fake_mode
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from profiler.core.case import Case
from profiler.core.catalogue import Count
from profiler.core.errors import Unsupported
from profiler.core.record import Applied, Note
from profiler.core.units import bytes_text
from profiler.training.block_segments import checkpointed
from profiler.training.kept_state import kept
from profiler.training.workload import Workload, tensors

# Until IS_LOOK all is plain PyTorch, since code that is emitted contains it: planning/plan_code.py


class HostMemory:
    """The streams on which tensors are copied to the host and back, and the most bytes that wait there at once."""

    def __init__(self) -> None:
        self.nbytes = self._now = 0  # of all buffers; a pinned one takes a power of two
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def __reduce__(self) -> Any:
        """A copy of the module has streams and bytes of its own."""
        return HostMemory, ()

    def count(self, nbytes: int) -> None:
        """Count bytes that wait from now on; negative ones no longer do."""
        self._now += nbytes
        self.nbytes = max(self.nbytes, self._now)

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
        is_pinned = memory.stream(tensor.device) is not None
        self._host = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, pin_memory=is_pinned)
        self._nbytes = 1 << (tensor.nbytes - 1).bit_length() if is_pinned else tensor.nbytes
        memory.count(self._nbytes)
        self._landed = memory.copy(self._host, self._tensor, self._device)
        self._fetched: tuple[torch.Tensor, torch.cuda.Event | None] | None = None

    def land(self) -> None:
        """Free the device's tensor, once its copy has ended."""
        _wait(self._landed, self._device)
        self._tensor = None

    def fetch(self) -> None:
        """Begin to copy the tensor back, unless that has begun."""
        if self._fetched is None:
            made = torch.empty_like(self._host, device=self._device)
            self._fetched = made, self._memory.copy(made, self._host, self._device)

    def back(self) -> torch.Tensor:
        """Return the tensor on its device; a second backward of its graph fetches it again."""
        self.fetch()
        assert self._fetched is not None
        (made, event), self._fetched = self._fetched, None
        _wait(event, self._device)
        return made

    def __del__(self) -> None:
        """Count it no more; PyTorch uses a pinned buffer again only after the copies that still read it."""
        if "_nbytes" in self.__dict__:  # there was memory for it
            self._memory.count(-self._nbytes)


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
    place = tensor.untyped_storage()._cdata, tensor.storage_offset()
    return *place, tensor.shape, tensor.stride(), tensor.dtype


IS_LOOK = ContextVar("is_look", default=False)  # parameters are fake for a look alone, and no step runs on them


def inputs(workload: Workload, case: Case, *, least: Count = 1048576) -> tuple[Workload, Applied]:
    """Moves the inputs of checkpoints to pinned host memory until the backward is a block away.

    Those of fewer than `least` bytes stay. Raises Unsupported where no strategy has checkpointed a block.
    """
    segments = checkpointed(workload)
    if not segments:
        raise Unsupported(f"{case.strategy} checkpoints no block, so there is no input to move to host memory")
    ends = [(name, after) for name, after in pairwise(workload.blocks) if segments.get(name) is not segments.get(after)]
    waiting = {name: after for name, after in ends if name in segments}
    return workload, Applied(remark=offload_inputs(workload, waiting, least=least), switch=lambda on: None)


def offload_inputs(workload: Workload, fetched_at: Mapping[str, str], *, least: int = 0) -> Callable[[], Note]:
    """Send the inputs of checkpointed segments to host memory; return what says, after a step, how much that takes.

    `fetched_at` has, for a block of each segment, the block after it at whose backward its input is fetched. Inputs of
    fewer than `least` bytes stay on the device. Raises Unsupported in an estimate, where all tensors are on one device.
    """
    if detect_fake_mode([*workload.module.parameters()]) and not IS_LOOK.get():
        raise Unsupported("an estimate does not follow inputs of checkpoints to host memory: rehearse or measure it")
    memory = HostMemory()
    segments = checkpointed(workload)
    for name, after in fetched_at.items():
        segments[name].around = OffloadedInput(memory, workload.block(after), least=least)

    def remark() -> Note:
        text = f"inputs of checkpoints wait in {bytes_text(memory.nbytes)} of pinned host memory"
        nothing = "offloads nothing: no checkpoint before the last block has a large input that is computed"
        return Note(code="GCP069", text=text if memory.nbytes else nothing)

    return remark


def expandable_segments(workload: Workload, case: Case) -> tuple[Workload, Applied]:
    """Segments of CUDA's allocator that grow (PYTORCH_ALLOC_CONF), so that other bytes are reserved, mostly fewer.

    Raises Unsupported where there are none: on a CPU, and in an estimate.
    """
    return workload, Applied(split="segments grow")  # `let_grow` was called before the model was made


def grows(case: Case) -> bool:
    """Whether the case has the lever `expandable-segments`."""
    return any(lever.name == "expandable-segments" for lever in case.levers or ())


def let_grow(case: Case) -> None:
    """Let all segments that are reserved from now on grow, for a model that is not made yet.

    Raises Unsupported where segments cannot grow.
    """
    if case.is_predicted:
        raise Unsupported("an estimate has no reserved bytes, which are what grows: rehearse or measure it")
    if not case.torch_device.startswith("cuda"):
        raise Unsupported("a CPU reserves no segments: expandable-segments is for CUDA")
    gc.collect()
    torch.cuda.empty_cache()
    set_growing(True)


def set_growing(on: bool) -> None:
    """Set whether segments that are reserved from now on grow."""
    torch._C._accelerator_setAllocatorSettings(f"expandable_segments:{on}")


def micro_batches(workload: Workload, case: Case, *, n: Count) -> tuple[Workload, Applied]:
    """Splits the batch into n parts with a forward and a backward each, whose gradients are summed.

    Where the loss is a mean over targets that are not ignored, each part counts by how many it has. Raises Unsupported
    where BatchNorm would see other statistics, and where the batch has no n samples.
    """
    if case.parallel:
        raise Unsupported("micro-batches: ranks have --accumulate and a smaller --batch-size")
    norms = [part for part in workload.module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    if any(norm.training for norm in norms):
        raise Unsupported("micro-batches: BatchNorm would see the statistics of parts of the batch")
    leaves, form = pytree.tree_flatten(workload.batch)
    size = next((leaf.shape[0] for leaf in tensors(workload.batch) if leaf.ndim), 0)
    if size < n:
        raise Unsupported(f"the batch has {size} samples, which are not {n} parts")
    split = [
        leaf.tensor_split(n) if isinstance(leaf, torch.Tensor) and leaf.shape[:1] == (size,) else [leaf] * n
        for leaf in leaves
    ]
    batches = [pytree.tree_unflatten(list(part), form) for part in zip(*split, strict=True)]
    rows = [float(len(part)) for part in torch.arange(size, device="cpu").tensor_split(n)]
    has_values = not (case.is_rehearsed or case.is_predicted)
    counts: list[float | str | None] = [] if has_values else [None]
    for batch in batches if has_values else ():
        with torch.no_grad(), kept(workload.module), _Reductions() as seen:
            workload.loss(workload.module, batch)
        counts.append(seen.found[0] if len(set(seen.found)) == 1 else None)
    if all(count == "sum" for count in counts):
        weights = [1.0] * n
    else:
        known = [count for count in counts if isinstance(count, float)]
        weights = _shares(known if len(known) == n else rows)
    parts = tuple(pair for pair in zip(batches, weights, strict=True) if pair[1])  # a mean over no targets is nan
    return msgspec.structs.replace(workload, parts=parts), Applied(
        split=f"{n} micro-batches", rounds=True, draws_apart=True
    )


def _shares(counts: list[float]) -> list[float]:
    return [count / (sum(counts) or 1.0) for count in counts]


class _Reductions(TorchFunctionMode):
    """Notes over how many targets (by their classes' weights) a functional loss is a mean; "sum" if it is a sum."""

    NAMES = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction")  # of a loss of classes

    def __init__(self) -> None:
        super().__init__()
        self.found: list[float | str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_of_classes = getattr(func, "__name__", "") in ("cross_entropy", "nll_loss")
        named = dict(zip(self.NAMES, args, strict=False)) | kwargs if is_of_classes else kwargs
        if named.get("reduction", "mean") == "mean" and is_of_classes and not named["target"].is_floating_point():
            targets = named["target"][named["target"] != named.get("ignore_index", -100)]
            weight = named.get("weight")
            self.found.append(float(len(targets) if weight is None else weight[targets].sum()))
        elif named.get("reduction") == "sum":
            self.found.append("sum")
        return func(*args, **kwargs)


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
