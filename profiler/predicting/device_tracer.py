"""Notes what a step runs on a CUDA device, real or hollow: operators, modules, saved tensors, allocations."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from profiler.core.allocator_history import Block, blocks_in_use
from profiler.core.errors import Unsupported
from profiler.core.own_thread import replaced
from profiler.core.trace_data import Operator
from profiler.core.user_code import is_ours
from profiler.measuring.meters.flops import bytes_to_host, kind_of
from profiler.predicting.trace.in_place import is_in_place, is_sum_in_place, linear
from profiler.training.checkpointing.called_blocks import CalledBlock, running_name
from profiler.training.workload import dense_parts, tensors, uncollected

COMPILED = "compiled code"  # what allocates without a call that a dispatch mode sees
MOST_EVENTS = 10_000_000
CHECKPOINT = "torch.utils.checkpoint"  # the module whose hooks rerun the model's own code
OWN_HOOKS = (
    "the model packs what autograd saves by hooks of its own (saved_tensors_hooks), so that the bytes of other "
    "strategies cannot be derived; `gcprof rehearse` runs them for each strategy"
)


class Ran(NamedTuple):
    """One call of an operator, and the allocator's own count of bytes around it."""

    operator: Operator
    made_by: int  # in the backward: the number of the forward operator whose node runs; 0 if not known
    start_bytes: int | None  # None for code that allocates without a call
    end_bytes: int
    peak_bytes: int  # the most while it ran


class Called(NamedTuple):
    """One call of a module in a forward, with the addresses of the storages that it takes and returns."""

    module: str
    before: int
    last: int
    saves: tuple[int, int]
    inputs: list[int]
    outputs: list[int]


class Saved:
    """One tensor that autograd saves: the addresses of its storages, and numbers of operators."""

    __slots__ = ("addresses", "packed", "released", "unpacked")

    def __init__(self, addresses: list[int], packed: int) -> None:
        self.addresses, self.packed = addresses, packed
        self.unpacked: int | None = None
        self.released: int | None = None


class DeviceTracer(TorchDispatchMode):
    """Dispatch mode that numbers the operators, and counts what the allocator had recorded as each began and ended.

    The allocator's history says which block each operator was given and gave back; its statistics say how many bytes
    that were. `with_saves` also notes what autograd saves; with `drops`, autograd is given nothing to keep, as in a
    checkpoint: no backward can follow. `with_modules` runs Python at each module's call, which must be false where
    compiled code does not allow it. `with_lines` has the history tell which lines of Python asked.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        with_saves: bool = False,
        drops: bool = False,
        with_modules: bool = True,
        with_lines: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ran: list[Ran] = []
        self.marks: list[tuple[str, int]] = []
        self.calls: list[Called] = []
        self.saved: list[Saved] = []
        self.arrived: list[tuple[int, int, str]] = []  # gradients: address, operators before, module
        self.before: tuple[Block, ...] = ()  # blocks in use when the step began
        self.events: list[dict[str, Any]] = []  # the allocator's history of the step
        self.reserved_bytes = 0
        self.num_to_host = 0  # bytes that were copied to the host
        self.bounds: list[tuple[int, int, bool]] = []  # events of the history before, operator, whether it ended
        self._phase = "before"
        self._with_saves, self._drops = with_saves or drops, drops
        self._with_modules, self._with_lines = with_modules, with_lines
        self._names = {id(child): name for name, child in reversed(list(module.named_modules()))}
        self._owners = {id(one): name.rpartition(".")[0] for name, one in module.named_parameters()}
        self._trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._stack, self._blocks = [""], list[CalledBlock]()
        self._made: dict[tuple[int, int], tuple[str, int]] = {}  # by thread and node: module and operator that made it
        self._home = threading.get_ident()
        self._task: int | None = None  # of the backward that the step itself runs
        self._num_given = self._num_events = 0  # blocks given, and given or taken back, as of the last count
        self._num_first = 0  # of these events, as the history begins
        self._device = torch.cuda.current_device()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # compiled code stays compiled

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # it sees what compiled code runs, not how it is compiled

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, kind = kwargs or {}, kind_of(func)
        if kind.is_question:
            return func(*args, **kwargs)
        start = self._note_unseen()
        number = len(self.ran) + 1
        self.bounds.append((self._num_events - self._num_first, number, False))
        torch._C._cuda_resetPeakMemoryStats(self._device)
        is_written = is_in_place(func, args) or is_sum_in_place(func, args)
        out = _written(func, args, kwargs) if is_written else func(*args, **kwargs)
        self.num_to_host += bytes_to_host(args, out)
        current, peak = self._count()
        self.bounds.append((self._num_events - self._num_first, number, True))
        torch._C._cuda_resetPeakMemoryStats(self._device)
        phase, module, made_by = self._place(number)
        operator = Operator(kind.name, module, phase, *kind.work(args, kwargs, out))
        self.ran.append(Ran(operator, made_by, start, current, peak))
        return out

    @contextmanager
    def follow(self) -> Iterator[None]:
        """Note what runs within, Python's cyclic collector off."""
        handles = [parameter.register_post_accumulate_grad_hook(self._arrive) for parameter in self._trained]
        self.before = blocks_in_use(snapshot(self._device)["segments"])
        context = "alloc" if self._with_lines else None
        torch.cuda.memory._record_memory_history(
            max_entries=MOST_EVENTS, context=context, stacks="python", clear_history=True
        )
        self._count()
        self._num_first = self._num_events
        torch._C._cuda_resetPeakMemoryStats(self._device)
        try:
            with ExitStack() as stack:
                stack.enter_context(uncollected())
                if self._with_modules:
                    stack.enter_context(mock.patch.object(nn.Module, "__call__", self._calling()))
                    stack.enter_context(mock.patch.object(functional, "linear", linear))
                if self._with_saves:
                    stack.enter_context(saved_tensors_hooks(self._pack, self._unpack))
                    stack.enter_context(refused_hooks(OWN_HOOKS))
                stack.enter_context(self)
                yield
            self.events = snapshot(self._device)["device_traces"][self._device]
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
            for handle in handles:
                handle.remove()

    def mark(self, phase: str) -> None:
        """Begin a phase."""
        self._note_unseen()
        self._phase, self._task = phase, None
        self.marks.append((phase, len(self.ran)))

    def _note_unseen(self) -> int:
        """Return the bytes that are allocated; note what has been since the last operator, by code without a call."""
        num_before = self._num_given
        current, peak = self._count()
        if self._num_given != num_before:
            phase, module, made_by = self._place(len(self.ran) + 1)
            self.ran.append(Ran(Operator(COMPILED, module, phase), made_by, None, current, peak))
        return current

    def _count(self) -> tuple[int, int]:
        """Return the bytes that are allocated, and the most since the count began, as the allocator says."""
        counts = torch._C._cuda_memoryStats(self._device)
        held = counts["allocated_bytes"]["all"]
        self.reserved_bytes = max(self.reserved_bytes, counts["reserved_bytes"]["all"]["peak"])
        blocks = counts["allocation"]["all"]
        self._num_given, self._num_events = blocks["allocated"], blocks["allocated"] + blocks["freed"]
        return held["current"], held["peak"]

    def _place(self, number: int) -> tuple[str, str, int]:
        """Return the phase, the module, and the operator whose backward it is, of the operator of this number."""
        node: Any = torch._C._current_autograd_node() if self._phase == "backward" else None
        task = torch._C._current_graph_task_id() if self._phase == "backward" else -1
        is_recompute = task != -1 and torch.is_grad_enabled()  # autograd itself disables gradients
        self._task = task if self._task is None and task != -1 else self._task
        if self._phase == "forward" or is_recompute:
            made = threading.get_ident(), torch._C._autograd._get_sequence_nr() - 1  # each thread has its own numbers
            self._made.setdefault(made, (self._stack[-1], number))
            return "recompute" if is_recompute else self._phase, self._stack[-1], 0
        variable = getattr(node, "variable", None)  # of AccumulateGrad
        if node is None or variable is not None:
            return self._phase, self._owners.get(id(variable), ""), 0
        thread = self._home if task == self._task else threading.get_ident()  # a backward within a recompute
        return self._phase, *self._made.get((thread, node._sequence_nr()), ("", 0))

    def _calling(self) -> Callable[..., Any]:
        call: Callable[..., Any] = nn.Module.__call__

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return call(module, *args, **kwargs)
            name = running_name(module, self._names, self._blocks)
            self._stack.append(name or self._stack[-1])
            self._blocks += [module] if isinstance(module, CalledBlock) else []
            is_noted = self._phase == "forward" and name is not None
            given = addresses((args, kwargs)) if is_noted else []
            before, first = len(self.ran), len(self.saved)
            try:
                out = call(module, *args, **kwargs)
            finally:
                self._stack.pop()
                del self._blocks[len(self._blocks) - isinstance(module, CalledBlock) :]
            if is_noted:
                saves = first, len(self.saved)
                self.calls.append(Called(name or "", before, len(self.ran), saves, given, addresses(out)))
            return out

        return called

    def _arrive(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            at, owner = len(self.ran), self._owners[id(parameter)]
            self.arrived += [(address, at, owner) for address in addresses(parameter.grad)]

    def _pack(self, tensor: torch.Tensor) -> _Packet:
        saved = Saved(addresses(tensor), len(self.ran))
        self.saved.append(saved)
        return _Packet(self.ran, saved, None if self._drops else tensor)

    def _unpack(self, packet: _Packet) -> torch.Tensor:
        if packet.saved.unpacked is None:
            packet.saved.unpacked = len(self.ran)
        assert packet.tensor is not None, "no backward follows a forward that drops what it saves"
        return packet.tensor


class _Packet:
    """What autograd keeps in place of a saved tensor: the tensor itself, so that memory is as without hooks."""

    __slots__ = ("_ran", "saved", "tensor")

    def __init__(self, ran: list[Ran], saved: Saved, tensor: torch.Tensor | None) -> None:
        self._ran, self.saved, self.tensor = ran, saved, tensor

    def __del__(self) -> None:
        self.saved.released = len(self._ran)


@contextmanager
def refused_hooks(reason: str) -> Iterator[None]:
    """Raise Unsupported if the model enters hooks of its own within, which would see what autograd saves first."""
    enter = saved_tensors_hooks.__enter__

    def entered(hooks: Any) -> Any:
        code = getattr(hooks.pack_hook, "__code__", None)
        if type(hooks).__module__ != CHECKPOINT and not (code and is_ours(code.co_filename)):
            raise Unsupported(reason)
        return enter(hooks)

    with replaced(saved_tensors_hooks, __enter__=entered):
        yield


def _written(func: Any, args: Any, kwargs: Any) -> Any:
    """Write over the first argument, as autograd does where no dispatch mode is on."""
    in_place = getattr(torch.ops.aten, f"{func._overloadpacket.__name__}_")
    return getattr(in_place, func._overloadname)(*args, **kwargs).detach()


def snapshot(device: int | None = None) -> dict[str, Any]:
    """Return PyTorch's snapshot of the allocator's blocks and history.

    One with lines of Python asks the compiler for those of generated code, and would import it: 5 s of processor time.
    """
    is_late = f"{torch.__name__}._inductor" not in sys.modules
    if is_late:
        vars(torch)["_inductor"] = SimpleNamespace()
    try:
        return dict(torch.cuda.memory._snapshot(device))
    finally:
        if is_late:
            del vars(torch)["_inductor"]


def addresses(tree: Any) -> list[int]:
    """Return the addresses of the CUDA storages of all tensors in any nesting."""
    parts = (part for tensor in tensors(tree) for part in dense_parts(tensor) if part.is_cuda)
    storages = (part.untyped_storage() for part in parts)
    return list(dict.fromkeys(storage.data_ptr() for storage in storages if storage.nbytes()))
