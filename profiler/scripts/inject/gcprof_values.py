"""Values on a GPU that computes nothing: those from the host are real, others are assumed where they are made.

An operator always runs first as it is, so that it allocates what it does on a GPU. Then its values are computed on the
CPU and written into its own results, where all of its inputs are known, or where it makes integers or booleans: then
floating-point numbers that are not known are zero, which is an assumption, and told with its line. A size that depends
on values is therefore known before the operator runs, and handed to PyTorch's own code as what it reads of the GPU.

PyTorch's dispatcher calls this below autograd, by a key that it has no use of its own for ("Fake"): unlike a dispatch
mode, that is seen neither by Dynamo nor by autograd, which adds gradients out of place where there is a mode.

How unknown values are assumed: `zeros` takes numbers as zero. `none`, `all` and `balanced` say what comparisons of them
give (false, true, each second one), and which integers are chosen along a dimension: the first, the last, or one after
the other.
"""

from __future__ import annotations

import ctypes
import math
import os
import runpy
import sys
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from itertools import count
from typing import Any

import torch
from torch.library import Library, fallthrough_kernel

computing: Any = import_module("gcprof_computing")  # beside this file
lines: Any = import_module("gcprof_history")
FAKE = torch._C._dispatch_key_parse("Fake")
BELOW = torch._C._dispatch_keyset_full_after(FAKE)
TORCH = os.path.dirname(torch.__file__) + os.sep
MOST_READS = 10_000  # of one line, within a phase: a loop that waits for what is never computed
NEARLY_ZERO = 2.0**-24  # a single unknown number that the host reads, as it may divide by it; the least of fp16
ALIKE_READS = 250  # of one line in a phase; then the number is smaller, so that loops end that wait for a small one
MOST_PARTS = 64  # of a list that are looked at
FINITE = {"isnan", "isinf", "isfinite", "isposinf", "isneginf"}  # of which unknown numbers are finite
LBFGS: Any = sys.modules["torch.optim.lbfgs"].__file__  # asks the values of the GPU whether it goes on
GOES_ON = "LBFGS was taken to make all of its iterations, each line search to end with its first point"
PRINTS = "_tensor_str.py"  # of torch: what it computes to print a tensor is no matter of the script
_include = torch._C._dispatch_tls_set_dispatch_key_included
observers: list[Callable[[Any, Any, Any, Any], None]] = []  # each gets an operator, its arguments and its result


class Values:
    """Follows the operators of this process.

    `tell` gets a row for each assumption and each line that reads a value; `end` ends the process with a reason and a
    line; `watch` knows the phase and the step.
    """

    def __init__(
        self, tell: Callable[[dict[str, Any]], None], end: Callable[[str, str, str], None], watch: Any
    ) -> None:
        self.assumptions = Assumptions(tell, os.environ.get("GCPROF_VALUES", "zeros"))
        self.compute = computing.Computing(self.assumptions, lambda: self._nearly_zero(lines.line_now()))
        self._tell, self._end, self._watch = tell, end, watch
        self._here = threading.local()  # its count: the size that the running operator will read
        self._reads: set[tuple[str, bool]] = set()
        self._last: tuple[Any, ...] = ()
        self._num_last = 0
        self._num_numbers: Counter[tuple[Any, ...]] = Counter()  # unknown ones that were read, by line, phase and step
        self._losses = count(1)  # of LBFGS, which ends where two are alike
        self._libraries: list[Library] = []

    def begin(self) -> None:
        """Follow this thread's operators, and those of threads that begin later."""
        self._library("_").fallback(fallthrough_kernel, "Fake")
        for namespace, names in computing.names(is_whole=bool(observers)).items():
            library: Any = self._library(namespace)
            for name in names:
                library.m.impl(name, "Fake", self._kernel(f"{namespace}::{name}"), True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that another kernel is overridden
            self._library("aten").impl("_local_scalar_dense", _uncompiled(self._read), "CUDA")
        operators: Any = torch._ops
        for operator in operators._higher_order_ops.values():
            operator.fallthrough(FAKE)
        operators._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(FAKE)
        _include(FAKE, True)
        thread: Any = threading.Thread
        plain = thread._bootstrap_inner

        @wraps(plain)
        def bootstrap(self: Any) -> None:
            _include(FAKE, True)
            plain(self)

        thread._bootstrap_inner = bootstrap
        # a forked process cannot use a GPU that was used before
        os.register_at_fork(after_in_child=lambda: torch.cuda.is_initialized() and _include(FAKE, False))

    def _library(self, namespace: str) -> Library:
        self._libraries.append(Library(namespace, "IMPL"))
        return self._libraries[-1]

    def _kernel(self, name: str) -> Callable[..., Any]:
        """Return what the dispatcher calls for an operator."""
        plan: Any = None

        def call(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal plan
            if plan is None:
                plan = computing.Plan(name)
            _include(FAKE, False)
            try:
                if plan.is_sized or (args and _is_sparse(args[0])):
                    out = self._sized(plan, keyset, args, kwargs)
                else:
                    out = plan.func(*args, **kwargs)
                    if plan.written or plan.makes(args, out):
                        self.compute.follow(plan, args, kwargs, out)
                for observe in observers:
                    observe(plan.func, args, kwargs, out)
                return out
            finally:
                _include(FAKE, True)

        return _uncompiled(call)

    # ---- sizes

    def _sized(self, plan: Any, keyset: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator that reads the size of its result, or what it compares, of the GPU."""
        if _is_sparse(args[0]):
            if plan.name != computing.MERGES or not args[0].is_cuda:
                return self._within(plan, keyset, args, kwargs)
            values, state = self.compute.merged(args[0])
            return self._counted(plan, args, kwargs, values.shape[1], values, state)
        if not computing.is_ours(args[0]):
            return plan.func(*args, **kwargs)
        if plan.name in computing.COMPARES:
            plan.func(*args, **kwargs)
            return self.compute.results(plan, args, kwargs)[0]
        if plan.name not in computing.COUNTED:
            if plan.reads_within(args):  # the calls of others within are followed
                given = tuple(
                    torch.tensor(one, device="cpu") if at in plan.tensors and type(one) in (int, float, bool) else one
                    for at, one in enumerate(args)
                )
                out = self._within(plan, keyset, given, kwargs)
            else:
                out = plan.func(*args, **kwargs)
            if isinstance(out, torch.Tensor):
                self.compute.follow(plan, args, kwargs, out)
            return out
        values, state = self.compute.results(plan, args, kwargs)
        first = values[0] if isinstance(values, tuple) else values
        size = first.shape[kwargs.get("dim", args[1]) if plan.name == "unique_dim" else 0]
        return self._counted(plan, args, kwargs, size, values, state)

    def _within(self, plan: Any, keyset: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator of which the calls of others within are followed."""
        _include(FAKE, True)
        try:
            return plan.func.redispatch(keyset & BELOW, *args, **kwargs)
        finally:
            _include(FAKE, False)

    def _counted(self, plan: Any, args: Any, kwargs: Any, size: int, values: Any, state: int) -> Any:
        """Run an operator that reads this size of the GPU, and write into its results the values that they have."""
        self._here.count = size  # where it is read by PyTorch's `item`; and where by a copy
        answer = ctypes.CDLL(None).hollow_answer
        answer(ctypes.c_int64(size), 1)
        try:
            out = plan.func(*args, **kwargs)
        finally:
            answer(ctypes.c_int64(0), 0)
            self._here.count = None
        made_of = [out._indices()] if plan.name == computing.MERGES else computing.flat(out)
        for made, value in zip(made_of, computing.flat(values), strict=True):
            if made.shape == value.shape:
                computing.put(made, value, state)
        if state == computing.ASSUMED:
            self.assumptions.told(plan.name, computing.flat(values)[0].shape, is_size=True)
        return out

    # ---- what the host reads

    def _read(self, tensor: Any) -> Any:
        """Return the value of a tensor of one element."""
        if getattr(self._here, "count", None) is not None:
            return self._here.count
        is_included = torch._C._dispatch_tls_is_dispatch_key_included(FAKE)
        _include(FAKE, False)
        try:
            mark = computing.mark_of(tensor)
            value = computing.value_of(tensor, mark).item()
            if mark is not None and mark.state_of(tensor) == computing.REAL:
                return value
            if type(value) is float and self.assumptions.goes_on():
                return float(next(self._losses))
            line = lines.line_now()
            if mark is None and type(value) is float:
                value = self._nearly_zero(line)
            is_integer = computing.is_discrete(tensor) and tensor.dtype != torch.bool
            is_size = is_integer and not sys._getframe(1).f_code.co_filename.startswith(TORCH)  # of a rank, or the like
            if is_size and value > 1:
                self.assumptions.counts[int(value)] = line
            if (line, is_size) not in self._reads:
                self._reads.add((line, is_size))
                self._tell({"kind": "read", "line": line, "is_integer": is_size})
            now = (line, self._watch.phase, self._watch.step)
            self._num_last = self._num_last + 1 if now == self._last else 1
            self._last = now
            if self._num_last > MOST_READS:
                why = f"{line} reads a value of the GPU, which is not computed, again and again, and may never end"
                self._end("no progress", why, line)
            return value
        finally:
            if is_included:
                _include(FAKE, True)

    def _nearly_zero(self, line: str) -> float:
        """Return an unknown number as the host reads it at a line."""
        place = (line, self._watch.phase, self._watch.step)
        self._num_numbers[place] += 1
        return float(NEARLY_ZERO ** (1 + self._num_numbers[place] // ALIKE_READS))

    def why_short(self) -> tuple[str, int] | None:
        """Return the line of the assumption that sized what runs now, and the size; None for none.

        It is looked for among what the script's innermost function has, and those that it calls.
        """
        frame: Any = sys._getframe(1)
        while frame is not None and self.assumptions.counts:
            sizes = _sizes(list(frame.f_locals.values()))
            for size, line in self.assumptions.counts.items():
                if size in sizes and not frame.f_code.co_filename.startswith(lines.HERE):
                    return line, size
            frame = None if lines.is_the_users(frame.f_code.co_filename) else frame.f_back
        return None

    def of_reading(self, line: str) -> str:
        """Return what is to be said of an error at a line that read a value which is not known; "" if it read none."""
        is_read = any(read == line for read, _ in self._reads)
        return "; a value of the GPU, which is not computed, was read there as a number near 0" if is_read else ""

    def why_unreadable(self, error: BaseException) -> str:
        """Return why an object that another rank sent cannot be unpickled; "" if the error is no such one."""
        if not (self.compute.lost_bytes and type(error).__name__ in ("UnpicklingError", "EOFError")):
            return ""
        lost, carried = (f"{size / 2**20:.3g} MiB" for size in (self.compute.lost_bytes, computing.CARRIED_BYTES))
        needed = max(16 << 20, 1 << self.compute.lost_bytes.bit_length())
        why = f"a message of {lost} between ranks was not carried, as gcprof carries up to {carried}"
        return f"{why}; set HOLLOW_COPY_BYTES={needed} to carry it: "


def _uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that Dynamo leaves alone, with all that it calls: it sees what runs in frames that it skips."""
    frames: Any = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function


def _is_sparse(value: Any) -> bool:
    """Whether a value is a sparse tensor, whose indices and values are tensors of their own."""
    return type(value) in computing.TENSORS and value.layout is torch.sparse_coo


def _sizes(value: Any) -> set[int]:
    """Return all integers among arguments, and the sizes of tensors."""
    if isinstance(value, torch.Tensor):
        return {int(size) for size in value.shape}
    if type(value) in (list, tuple):
        return {size for part in value[:MOST_PARTS] for size in _sizes(part)}
    return {value} if type(value) is int else set()


class Assumptions:
    """Chooses, and tells each choice once. `tell` gets rows for the watch's file."""

    def __init__(self, tell: Callable[[dict[str, Any]], None], how: str) -> None:
        self.how = how
        self.counts: dict[int, str] = {}  # sizes above 1 that came from assumed values, and their lines
        self._tell = tell
        self._told: set[tuple[str, str, bool]] = set()
        self._is_noted = False

    def told(self, operator: str, shape: Any, *, is_size: bool = False) -> None:
        """Tell an assumption, or a size that came from one."""
        frames = traceback.walk_stack(sys._getframe(1))
        if any(frame.f_code.co_filename.endswith(PRINTS) for frame, _ in frames):
            return
        line = lines.line_now()
        if is_size:
            self.counts.update({int(size): line for size in shape if size > 1})
        if (operator, line, is_size) not in self._told:
            self._told.add((operator, line, is_size))
            self._tell(
                {"kind": "assumed", "operator": operator, "line": line, "shape": list(shape), "is_size": is_size}
            )

    def goes_on(self) -> bool:
        """Whether LBFGS itself asks, and not the closure that it calls: then it is to go on."""
        frame: Any = sys._getframe(1)
        while frame and frame.f_code.co_filename.startswith(lines.HERE):
            frame = frame.f_back
        if self.how != "zeros" or frame is None or frame.f_code.co_filename != LBFGS:
            return False
        if not self._is_noted:
            self._is_noted = True
            self._tell({"kind": "note", "text": GOES_ON, "line": lines.line_now()})
        return True

    def compared(self, name: str, args: Any, value: Any) -> Any:
        """Return what a comparison of unknown numbers gives; `value` is what it gives of zeros."""
        is_same = len(args) > 1 and args[0] is args[1]
        is_infinite = any(isinstance(one, float) and not math.isfinite(one) for one in args)
        if self.how == "zeros" or name.partition(".")[0] in FINITE or is_same or is_infinite:  # unknown ones are finite
            return value
        if self.how == "balanced":
            return (torch.arange(value.numel(), device="cpu") % 2 == 0).view(value.shape)
        return torch.full((), self.how == "all", device="cpu").expand(value.shape)

    def chosen(self, source: Any, dim: int | None, shape: Any) -> Any:
        """Return indices into the source along a dimension, or into all of it; of this shape, on the CPU."""
        is_kept = dim is not None and len(shape) == source.dim() > 0
        size = source.numel() if dim is None or not source.dim() else source.shape[dim]
        num = shape[dim] if is_kept else 1
        if self.how == "balanced" and num < size:
            spread = torch.arange(math.prod(shape), device="cpu") % size
            others = [extent for place, extent in enumerate(shape) if dim is None or place != dim % len(shape)]
            return spread.view(*others, num).movedim(-1, dim) if is_kept and dim is not None else spread.view(shape)
        first = size - num if self.how == "all" else 0
        along = torch.arange(first, first + num, device="cpu")
        if not is_kept or dim is None:
            return along[0].expand(shape)
        return along.view([-1 if place == dim % len(shape) else 1 for place in range(len(shape))]).expand(shape)


# ---- what the operators of the second step compute and move, as the first one makes optimizer state: `report.py`
# estimates its seconds from that

STEP = 2  # of the main optimizer, from 1
LARGE = 1 << 20  # bytes of a copy to the host which no log or metric makes
ATTENTION = os.path.join(lines.PACKAGE, "measuring", "meters", "__init__.py")  # knows torch alone, too
COMPILED = "a part of the step is compiled, and what that computes is not counted"
TO_HOST = "the step copies {} to the host, whose transfers have no rate"
REPLAYED = "the step replays a CUDA graph, and what that computes is not counted"
KINDS = {torch.float16: "fp16", torch.bfloat16: "bf16"}  # of number, as rates of GPUs have it


class Work:
    """Counts what the operators of the second step compute and move, evaluations aside; called with each of them."""

    def __init__(self, write: Callable[[dict[str, Any]], None], watch: Any) -> None:
        self._write, self._watch = write, watch
        self._is_on = False
        self._calls: Counter[tuple[str, str, int, int]] = Counter()
        self._to_host = 0  # bytes
        self._num_replays = 0
        formulas = import_module("torch.utils.flop_counter").flop_registry  # which may import triton: 0.1 s
        self._formulas = {**formulas, **runpy.run_path(ATTENTION)["FORMULAS"]}

    def stepped(self, step: int) -> None:
        """Begin or end to count, right after a step of the main optimizer."""
        if self._is_on:
            dynamo = sys.modules.get("torch._dynamo.utils")
            is_compiled = bool(dynamo and dynamo.counters["stats"]["unique_graphs"])
            why = COMPILED if is_compiled else REPLAYED if self._num_replays else None
            if self._to_host:
                why = TO_HOST.format(f"{self._to_host / 2**20:.0f} MiB")
            calls = [[*call, num] for call, num in self._calls.items()]
            self._write({"kind": "work", "why": why, "calls": [] if why else calls})
            self._calls.clear()
        self._is_on = step == STEP - 1

    def replayed(self) -> None:
        """Note that a CUDA graph is replayed."""
        self._num_replays += self._is_on

    def __call__(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if not self._is_on or self._watch.is_aside or func.is_view:
            return
        given, made = computing.flat((args, kwargs)), computing.flat(out)
        devices = {tensor.device.type for tensor in (*given, *made)}
        if "cuda" not in devices:
            return
        if "cpu" in devices:
            copied = sum(tensor.nbytes for tensor in made if tensor.device.type == "cpu")
            self._to_host += copied if copied > LARGE else 0
            if func.overloadpacket in (torch.ops.aten.copy_, torch.ops.aten._to_copy):
                return
        kinds = {KINDS.get(tensor.dtype) for tensor in given or made}
        kind = "fp16" if "fp16" in kinds else "bf16" if "bf16" in kinds else "fp32"
        formula = self._formulas.get(func.overloadpacket)
        flops = int(formula(*args, **kwargs, out_val=out)) if formula else 0
        nbytes = sum(tensor.numel() * tensor.element_size() for tensor in (*given, *made))
        self._calls[str(func.overloadpacket), kind, flops, nbytes] += 1
