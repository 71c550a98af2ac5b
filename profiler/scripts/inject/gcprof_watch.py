"""The watch over a training script: its phases, and what each takes of the GPU's memory, by PyTorch's public hooks.

Imported by `sitecustomize` beside it once the script has imported torch; knows torch and the standard library alone. It
writes one file of JSON lines a process into the folder GCPROF_WATCH: a line for each phase as it ends, and others as
REPORT says. `profiler/scripts/report.py` reads them.

The peak of a phase is what the allocator says after its statistics were reset at the phase's begin. The script does not
see that: what it reads of its peaks is the largest of all phases since it reset them itself.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
import sysconfig
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from types import TracebackType
from typing import IO, Any

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils.data import dataloader

LIBRARY = re.compile(r"[/\\](site|dist)-packages[/\\]")
STANDARD = os.path.realpath(sysconfig.get_path("stdlib")) + os.sep
TORCH = os.path.dirname(torch.__file__) + os.sep
HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
GENERATES = {"generate", "sample", "sampling"}  # functions that call a model for its output, step by step
SIZED_BY_VALUES = (
    "nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive",
    "bincount", "repeat_interleave.Tensor",
)  # fmt: skip
UNKNOWN = 3  # the exit code where a size is not known
MAIN_STEPS = os.environ.get("GCPROF_STEPS")  # as many optimizer steps, then the script ends
MAIN_BATCHES = os.environ.get("GCPROF_BATCHES")  # every DataLoader ends after as many batches
Stats = dict[str, Any]


def begin(why: str | None) -> None:
    """Begin to watch: torch is imported, and nothing of the script's has used it yet; `why` it has no hollow GPU."""
    if why:
        _write({"kind": "no device", "why": why})
        return
    flags = str(torch._C._cuda_getArchFlags()).split()
    os.environ["HOLLOW_ARCHS"] = ",".join({re.sub(r"\D", "", flag) for flag in flags})
    watch = Watch()
    watch.know_no_values()
    watch.begin()


_file: list[IO[str]] = []


def _write(line: dict[str, Any]) -> None:
    if not _file:
        rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", ""))
        path = os.path.join(os.environ["GCPROF_WATCH"], f"{rank or '-'}.{os.getpid()}.jsonl")
        _file.append(open(path, "a", encoding="utf-8"))  # noqa: SIM115  open as long as the process
        _write({"kind": "torch", "version": torch.__version__, "file": torch.__file__, "python": sys.executable})
    _file[0].write(json.dumps(line) + "\n")
    _file[0].flush()


class Watch:
    """Which phase the script is in, and the marks between them."""

    def __init__(self) -> None:
        self.phase, self.line = "start", ""
        self.step = 0  # optimizer steps so far: those of the optimizer that stepped first
        self.depth = 0  # 1 within the call of a module; what that calls has no hooks
        self.held = 0  # phases within a phase: saving, and a backward within a forward
        self.main: Callable[[], Any] = lambda: None  # the optimizer whose steps are counted, if it still lives
        self.module = ""
        self.hidden: dict[int, Stats] = {}
        self.reads: set[str] = set()  # lines that read a value of the GPU
        self.process = os.getpid()
        self.thread = threading.get_ident()

    def begin(self) -> None:
        self._hide_resets(torch._C)
        warnings.filterwarnings("ignore", message="Using `torch.compile.module.` when there are global hooks")
        self.every = modules.register_module_forward_pre_hook(self._before_forward)
        self.outermost: Any = None  # its hook, while it is called
        optimizers.register_optimizer_step_pre_hook(self._before_step)
        optimizers.register_optimizer_step_post_hook(self._after_step)
        autograd: Any = torch.autograd
        autograd.backward = self._around(autograd.backward, "backward", "after the backward")
        torch.save = self._around(torch.save, "saving", None)
        if hasattr(torch._C, "_cuda_attach_out_of_memory_observer"):
            torch._C._cuda_attach_out_of_memory_observer(self._out_of_memory)
        if MAIN_BATCHES:
            _end_loaders(int(MAIN_BATCHES))
        sys.excepthook = partial(self._raised, sys.excepthook)
        atexit.register(self._end)

    # ---- phases

    def mark(self, phase: str, line: str | None = None) -> None:
        """End the phase that was, and begin another; the phase that is goes on."""
        if phase == self.phase or os.getpid() != self.process:
            return
        self._tell()
        self.phase, self.line = phase, _line() if line is None else line

    def _tell(self, **more: Any) -> None:
        devices = self._read()
        if any(reserved for _, _, reserved in devices.values()):
            row = {"kind": "phase", "phase": self.phase, "step": self.step, "line": self.line, "module": self.module}
            _write({**row, "devices": devices, **more})

    def _before_forward(self, module: Any, arguments: Any) -> None:
        if torch.compiler.is_compiling() or threading.get_ident() != self.thread:
            return
        if not self.held:
            self._begin_forward(module)
        self.depth = 1
        self.every.remove()  # a hook on every module costs 5 us for each of them
        self._forget_outermost()
        self.outermost = module.register_forward_hook(self._after_forward, always_call=True)

    def _begin_forward(self, module: Any) -> None:
        if torch.is_grad_enabled():
            name = type(module).__name__
            if name != self.module and next(module.parameters(), None) is not None:  # a loss is no model
                self.module = name
            self.mark("forward")
        elif self.phase not in ("evaluation", "generation"):
            self.mark("generation" if GENERATES & set(_functions()) else "evaluation")

    def _after_forward(self, module: Any, arguments: Any, output: Any) -> None:
        if threading.get_ident() != self.thread:
            return
        self.depth = 0
        self.every = modules.register_module_forward_pre_hook(self._before_forward)
        if sys.exc_info()[0] is None:  # else PyTorch iterates over the hooks just now
            self._forget_outermost()

    def _forget_outermost(self) -> None:
        """Leave no hook in a module, which may be saved or copied."""
        if self.outermost is not None:
            self.outermost.remove()
            self.outermost = None

    def _before_step(self, optimizer: Any, arguments: Any, keywords: Any) -> Any:
        if self.held:
            return None
        self.mark("optimizer")
        _, *words = arguments
        words[:1] = [self._then_optimizer(word) for word in words[:1]]
        closures = {name: self._then_optimizer(word) for name, word in keywords.items() if name == "closure"}
        return (optimizer, *words), {**keywords, **closures}

    def _then_optimizer(self, closure: Any) -> Any:
        """Return a closure after which the optimizer goes on: forward and backward are phases within its step."""

        def call(*words: Any, **keywords: Any) -> Any:
            result = closure(*words, **keywords)
            self.mark("optimizer")
            return result

        return call if callable(closure) else closure

    def _after_step(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        if self.held:
            return
        self.mark("after the step")
        if self.main() is None:  # the first one, or that of a script that goes on with another
            self.main = weakref.ref(optimizer)
        if self.main() is not optimizer:
            return
        self.step += 1
        if MAIN_STEPS and self.step >= int(MAIN_STEPS):
            if self.step > int(MAIN_STEPS):  # the script caught the first one
                self._end()
                os._exit(0)
            raise SystemExit(0)

    def _around(self, function: Callable[..., Any], phase: str, after: str | None) -> Callable[..., Any]:
        """Return a function that is a phase of its own, outside of others; then the one `after`, or that before."""

        def call(*words: Any, **keywords: Any) -> Any:
            if self.held or self.depth or threading.get_ident() != self.thread:
                return function(*words, **keywords)
            self._forget_outermost()
            before = self.phase, self.line
            self.mark(phase)
            self.held += 1
            try:
                result = function(*words, **keywords)
            finally:
                self.held -= 1
            self.mark(*((after,) if after else before))
            return result

        call.__name__, call.__doc__ = function.__name__, function.__doc__
        return call

    # ---- values, which a hollow GPU does not compute

    def know_no_values(self) -> None:
        """End the script where a size depends on values of the GPU, and note each line that reads one."""
        self.library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that another kernel is overridden
            for name in SIZED_BY_VALUES:
                self.library.impl(name, partial(self._unknown_size, name), "CUDA")
            self.library.impl("_local_scalar_dense", self._unknown_value, "CUDA")

    def _unknown_size(self, name: str, *arguments: Any, **keywords: Any) -> None:
        line = _line() or self.line
        why = f"the size of aten.{name}'s result depends on values, which a hollow GPU does not compute: {line}"
        self._tell()
        _write({"kind": "raised", "error": "unknown size", "text": why, "line": line})
        print(f"gcprof: {why}", file=sys.stderr, flush=True)
        os._exit(UNKNOWN)  # an exception could be caught, and the script go on with a size that is none

    def _unknown_value(self, tensor: Any) -> Any:
        line = _line() or self.line
        if line not in self.reads:
            self.reads.add(line)
            is_number = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
            is_size = is_number and not sys._getframe(1).f_code.co_filename.startswith(TORCH)  # of a rank, or the like
            _write({"kind": "read", "line": line, "is_integer": is_size, "step": self.step})
        return tensor.cpu().item()

    # ---- ends

    def _out_of_memory(self, device: int, asked: int, total: int, free: int) -> None:
        with suppress(Exception):  # within the allocator: what it raises would hide the script's own error
            row = {"phase": self.phase, "step": self.step, "line": _line() or self.line, "module": self.module}
            _write({"kind": "out of memory", "device": device, "asked": asked, **row})

    def _raised(self, plain: Callable[..., None], kind: Any, error: BaseException, trace: Any) -> None:
        if os.getpid() == self.process:
            frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_the_users(frame.filename)]
            where = f"{_short(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
            _write({"kind": "raised", "error": type(error).__name__, "text": str(error)[:500], "line": where})
        for known in _causes(error):
            known.__traceback__ = _without_ours(known.__traceback__)
        plain(kind, error, error.__traceback__)

    def _end(self) -> None:
        if os.getpid() == self.process:
            with suppress(Exception):  # CUDA may be gone
                self._tell()
            if _file:
                _write({"kind": "end", "steps": self.step})

    # ---- memory

    def _hide_resets(self, interface: Any) -> None:
        """Let the script read its peaks as if we had never reset them."""
        self._stats, self._reset = interface._cuda_memoryStats, interface._cuda_resetPeakMemoryStats

        def reading(function: Callable[[int], Stats]) -> Callable[[int], Stats]:
            return lambda device: _with_peaks(function(device), self.hidden.get(device, {}))

        def resetting(function: Callable[[int], None]) -> Callable[[int], None]:
            def reset(device: int) -> None:
                self.hidden.pop(device, None)
                function(device)

            return reset

        for read, reset in (
            ("_cuda_memoryStats", "_cuda_resetPeakMemoryStats"),
            ("_accelerator_getDeviceStats", "_accelerator_resetPeakStats"),
        ):
            if hasattr(interface, read):
                setattr(interface, read, reading(getattr(interface, read)))
                setattr(interface, reset, resetting(getattr(interface, reset)))

    def _read(self) -> dict[int, tuple[int, int, int]]:
        """Return of each device its peak since the last mark, what is live, and the most that was reserved."""
        found = {}
        for device in range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ():
            stats = self._stats(device)
            live, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
            found[device] = live["peak"], live["current"], reserved["peak"]
            self.hidden[device] = _with_peaks(stats, self.hidden.get(device, {}))
            self._reset(device)
        return found


def _with_peaks(stats: Stats, other: Stats) -> Stats:
    """Return statistics of the allocator whose peaks are the larger ones of two."""
    for name, value in stats.items():
        if isinstance(value, dict):
            _with_peaks(value, other.get(name, {}))
        elif name == "peak":
            stats[name] = max(value, other.get(name, value))
    return stats


def _end_loaders(most: int) -> None:
    """Let every iteration over a DataLoader end after as many batches."""
    iterator: Any = dataloader._BaseDataLoaderIter
    following = iterator.__next__

    def __next__(self: Any) -> Any:
        if self._num_yielded >= most:
            raise StopIteration
        return following(self)

    iterator.__next__ = __next__


# ---- lines of the script


@cache  # asked for each frame at each mark: without it a step of 10 ms took 5 % longer
def _is_the_users(file: str) -> bool:
    path = os.path.realpath(file)
    return not LIBRARY.search(path) and not path.startswith((STANDARD, HERE)) and os.path.isfile(path)


def _causes(error: BaseException | None) -> list[BaseException]:
    """Return an error with all that led to it."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this file."""
    if trace is None:
        return None
    following = _without_ours(trace.tb_next)
    if trace.tb_frame.f_code.co_filename == __file__:
        return following
    return TracebackType(following, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


@cache
def _short(file: str) -> str:
    path = os.path.relpath(file)
    return os.path.basename(file) if path.startswith("..") else path


def _line() -> str:
    """Return the innermost line that is no library's: `train.py:61`."""
    frame = sys._getframe(1)
    while frame is not None:
        if _is_the_users(frame.f_code.co_filename):
            return f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _functions() -> list[str]:
    frame, names = sys._getframe(1), []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return names
