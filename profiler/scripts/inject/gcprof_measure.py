"""Measures a training script on the device that is here: memory by phase and gradients, or the seconds of its steps.

Imported by `sitecustomize` beside it once the script has imported torch; knows torch and the standard library alone.
GCPROF_MEASURE says what is measured: `memory`, with the gradients of the first two steps; `gradients` alone; or `time`,
where nothing is looked at but when each step of the main optimizer ends. Lines are written as by `gcprof_watch`.

Of gradients there is a digest each, and how far they are from other ones, in a line for each of the first steps of an
optimizer, before it changes anything. The bytes are kept in files, for a later run of the same script to compare its
own with: GCPROF_REFERENCE is the folder of those of an earlier run.
"""

from __future__ import annotations

import ctypes
import hashlib
import multiprocessing
import os
import platform
import runpy
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import profiler
from torch.optim import optimizer as optimizers

if TYPE_CHECKING:
    from profiler.scripts.inject.gcprof_watch import Watch, _end_loaders, _write, lines
else:
    from gcprof_watch import Watch, _end_loaders, _write, lines

save = torch.save  # which the watch makes a phase of
TERM = signal.SIGTERM
MARK, ASIDE = "gcprof: mark", "gcprof: aside"  # the end of a phase; the begin and the end of work of ours
COMPARED_STEPS = 2  # the first has the weights that all runs begin with; the second shows what follows from them
MOST_BYTES = 2**30  # kept of one step
comparing = runpy.run_path(os.path.join(lines.PACKAGE, "measuring", "meters", "__init__.py"))
Values = dict[str, torch.Tensor | None]


def begin() -> None:
    """Begin to measure: torch is imported, and nothing of the script's has used it yet."""
    what = os.environ["GCPROF_MEASURE"]
    has_gpu = bool(torch.version.cuda or torch.version.hip) and torch.cuda.device_count() > 0
    watch = Clock() if what == "time" else HostWatch() if what == "memory" and not has_gpu else MeasuredWatch()
    if isinstance(watch, MeasuredWatch):
        optimizers.register_optimizer_step_pre_hook(watch.look_at_gradients)
    watch.begin()
    if find_spec("gcprof_strategies"):
        import_module("gcprof_strategies").begin(watch, _write)


def _tell_device() -> None:
    """Write which device this process used."""
    if torch.cuda.is_initialized():
        facts = torch.cuda.get_device_properties(torch.cuda.current_device())
        _write({"kind": "device", "device": "cuda", "name": facts.name, "bytes": facts.total_memory})
    else:
        _write({"kind": "device", "device": "cpu", "name": platform.processor() or platform.machine(), "bytes": None})


class MeasuredWatch(Watch):
    """A watch that also takes the gradients, named by the outermost modules that are called in training."""

    def __init__(self) -> None:
        super().__init__()
        self.roots: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by id
        self._known: list[list[Any]] = []  # each optimizer, weakly, how often it has stepped, and its number

    def _before_forward(self, module: Any, arguments: Any) -> None:
        if not torch.compiler.is_compiling() and not self.depth and torch.is_grad_enabled():
            self.roots.setdefault(id(module), module)
        super()._before_forward(module, arguments)

    def _watch_processes(self) -> None:
        """Leave forked processes, such as those of a DataLoader, alone."""

    def _tell_last(self) -> None:
        _tell_device()
        super()._tell_last()

    def _apart(self, work: Callable[[], None]) -> None:
        """Do work whose allocations are not the script's."""
        work()

    def look_at_gradients(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        known = next((entry for entry in self._known if entry[0]() is optimizer), None)
        if known is None:
            known = [weakref.ref(optimizer), 0, len(self._known)]
            self._known.append(known)
        if known[1] < COMPARED_STEPS and os.getpid() == self.process:
            known[1] += 1
            self._apart(lambda: self._take(optimizer, number=known[2], step=known[1]))

    def _take(self, optimizer: Any, *, number: int, step: int) -> None:
        names = self._names(optimizer)
        gradients = {names[id(parameter)]: _on_host(parameter.grad) for parameter in _parameters(optimizer)}
        digests = {name: None if gradient is None else digest(gradient) for name, gradient in gradients.items()}
        file = f"{key_of_process()}.{number}.{step}.gradients"
        room, kept = MOST_BYTES, dict[str, Any]()  # the digests, and as many gradients as there is room for
        for name, gradient in gradients.items():
            fits = gradient is not None and gradient.nbytes <= room
            kept[name] = digests[name], gradient if fits else None
            room -= gradient.nbytes if gradient is not None and fits else 0
        with open(os.path.join(os.environ["GCPROF_WATCH"], file), "wb") as written:
            save(kept, written)
        place = os.path.join(os.environ.get("GCPROF_REFERENCE", ""), file)
        line = {"kind": "gradients", "key": key_of_process(), "optimizer": number, "step": step, "digests": digests}
        _write({**line, "differences": _differences(place, gradients, digests)})

    def _names(self, optimizer: Any) -> dict[int, str]:
        """Return the name of each of the optimizer's parameters: in its module, or by its place in the optimizer."""
        roots = sorted(self.roots.values(), key=lambda module: -sum(1 for _ in module.parameters()))
        found: dict[int, str] = {}
        ours = {id(parameter) for parameter in _parameters(optimizer)}
        taken: set[str] = set()
        for module in roots:
            for name, parameter in module.named_parameters():
                if id(parameter) in ours and id(parameter) not in found:
                    found[id(parameter)] = f"{type(module).__name__}.{name}" if name in taken else name
                    taken.add(found[id(parameter)])
        for place, parameter in enumerate(_parameters(optimizer)):
            found.setdefault(id(parameter), f"parameter {place} of the optimizer")
        return found


class HostWatch(MeasuredWatch):
    """The watch on a CPU: peaks are those of the allocator's own events, which torch.profiler hears.

    The profiler runs from before the script's first tensor to its end, since the allocator knows the size of what it
    frees only where it was allocated under the profiler. Phases are written at the end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.passes: list[dict[str, Any]] = []
        self.profile: Any = profiler.profile(use_cpu=True, profile_memory=True, use_kineto=True)

    def begin(self) -> None:
        super().begin()
        if threading.current_thread() is threading.main_thread() and signal.getsignal(TERM) is signal.SIG_DFL:
            signal.signal(TERM, lambda number, frame: sys.exit(128 + number))  # what has run so far is told
        self.profile.__enter__()
        module: Any = profiler
        self._prepare, module._prepare_profiler = module._prepare_profiler, self._other_profiler

    def _tell(self) -> None:
        self.passes.append({"kind": "phase", **self.now})
        with profiler.record_function(MARK):
            pass

    def _apart(self, work: Callable[[], None]) -> None:
        with profiler.record_function(ASIDE):
            pass
        work()
        with profiler.record_function(ASIDE):
            pass

    def _other_profiler(self, *words: Any, **keywords: Any) -> Any:
        """Stop before the script's own profiler starts, since there can be only one."""
        if self.profile is not None and os.getpid() == self.process:
            _write({"kind": "own profiler", "line": lines.line_now()})
            self._finish()
        return self._prepare(*words, **keywords)

    def _finish(self) -> None:
        """Write of each phase its peak and what is live at its end, in bytes, by allocations and releases in time.

        Shared memory, as of a DataLoader's workers, is among them. Sources: c10/core/CPUAllocator.cpp,
        ATen/MapAllocator.cpp.
        """
        if self.profile is None:
            return
        self._tell()
        profile, self.profile = self.profile, None
        profile.__exit__(None, None, None)
        found, events = [], list(profile.kineto_results.experimental_event_tree())
        while events:
            event = events.pop()
            events += event.children
            if event.name in (MARK, ASIDE):
                found.append((event.start_time_ns, event.name, 0))
            elif event.name == "[memory]" and event.extra_fields.device.type == "cpu":
                found.append((event.start_time_ns, "", event.extra_fields.alloc_size))
        spans, live, peak, is_aside = [], 0, 0, False
        for _, name, size in sorted(found, key=lambda item: item[0]):
            if name == MARK:
                spans.append((peak, live, None))
                peak = live
            elif name == ASIDE:
                is_aside = not is_aside
            else:
                live += size
                peak = peak if is_aside else max(peak, live)
        for row, span in zip(self.passes, spans, strict=False):
            _write({**row, "devices": {"cpu": span}})

    def _tell_last(self) -> None:
        _tell_device()
        self._finish()


class Clock(Watch):
    """When each step of the main optimizer ends: by CUDA's events on a GPU, else by the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: list[tuple[Any, Any]] = []  # of each step its optimizer, weakly, and its end

    def begin(self) -> None:
        optimizers.register_optimizer_step_post_hook(self._after_step)
        _end_loaders()
        self._end_with_process()

    def mark(self, phase: str, line: str | None = None) -> None:
        """Leave phases alone: only the ends of steps are noted."""

    def _is_watched(self) -> bool:
        return os.getpid() == self.process

    def _count_step(self) -> None:
        event: Any = time.perf_counter()
        if torch.cuda.is_initialized():
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        self.marks.append((self.main, event))
        super()._count_step()

    def end_process(self) -> None:
        if os.getpid() != self.process or self.is_ended:
            return
        self.is_ended = True
        if torch.cuda.is_initialized():
            with suppress(Exception):  # CUDA may be gone
                torch.cuda.synchronize()
        for step, ((one, earlier), (other, later)) in enumerate(pairwise(self.marks), start=1):
            if one is other:
                is_by_clock = isinstance(earlier, float) or isinstance(later, float)
                seconds = float(later - earlier if is_by_clock else earlier.elapsed_time(later) / 1000)  # CUDA's are ms
                _write({"kind": "seconds", "key": key_of_process(), "step": step, "seconds": seconds})
        _tell_device()
        _write({"kind": "end", "steps": self.step})


# ---- gradients


def key_of_process() -> str:
    """Return what a process is called in every run: its rank, or how it was started."""
    if rank := os.environ.get("RANK", os.environ.get("LOCAL_RANK")):
        return rank
    words = " ".join((*sys.argv, multiprocessing.current_process().name))
    return hashlib.sha256(words.encode()).hexdigest()[:12]


def _parameters(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


def digest(gradient: torch.Tensor) -> str:
    """Return the SHA-256 of a gradient's bytes, row after row."""
    whole = (ctypes.c_char * gradient.nbytes).from_address(gradient.data_ptr()) if gradient.nbytes else b""
    return hashlib.sha256(whole).hexdigest()


def _on_host(gradient: Any) -> torch.Tensor | None:
    """Return the values in rows on the host; of a sharded tensor, this rank's own."""
    if gradient is None:
        return None
    plain = (gradient.to_local() if hasattr(gradient, "to_local") else gradient).detach()
    dense: torch.Tensor = comparing["dense"](plain)
    return dense.cpu().contiguous()


def _differences(path: str, gradients: Values, digests: dict[str, str | None]) -> dict[str, float | None]:
    """Return the relative difference of each gradient that is not that of the file, None where it was not kept."""
    kept = torch.load(path, mmap=True, weights_only=True) if os.path.exists(path) else None
    changed = [name for name in gradients if kept is not None and kept.get(name, (None, None))[0] != digests[name]]
    sizes = [comparing["largest"](gradient) for gradient in gradients.values() if changed and gradient is not None]
    found: dict[str, float | None] = {}
    for name in changed:
        gradient, (known, other) = gradients[name], kept.get(name, (None, None)) if kept else (None, None)
        if known is not None and other is None and gradient is not None:
            found[name] = None
        elif gradient is None or other is None or other.dtype != gradient.dtype:
            found[name] = 2.0  # the most, as it cannot be compared
        else:
            least_scale = comparing["LEAST_SCALE"] * max(sizes)
            found[name] = comparing["difference"](other, gradient, least_scale=least_scale)
    return found
