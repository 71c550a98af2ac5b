"""The watch over a training script: its phases, and what each takes of the GPU's memory, by PyTorch's public hooks.

Imported by `sitecustomize` beside it once the script has imported torch; knows torch and the standard library alone. It
writes one file of JSON lines a process into the folder GCPROF_WATCH, which `profiler/scripts/report.py` reads.

The peak of a phase is what the allocator says after its statistics were reset at the phase's begin. The script does not
see that: what it reads of its peaks is the largest of all phases since it reset them itself.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache, partial, wraps
from importlib import import_module
from multiprocessing import process as processes
from typing import IO, Any, NoReturn

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils.data import dataloader

holding: Any = import_module("gcprof_holders")  # beside this file
models: Any = import_module("gcprof_strategies")
counters: Any = holding.counters
lines: Any = holding.history  # of the user's own code
GENERATES = {"generate", "sample", "sampling"}  # functions that call a model for its output, step by step
STACK_SIGNAL, TOLD = signal.SIGRTMIN + 20, "told"  # as in profiler/scripts/launch.py
MAIN_STEPS = os.environ.get("GCPROF_STEPS")  # as many optimizer steps, then the script ends
CHAIN_STEP = os.environ.get("GCPROF_CHAIN")  # the step, from 0, whose stages are costed for a plan
MAIN_BATCHES = os.environ.get("GCPROF_BATCHES")  # every DataLoader ends after as many batches


def begin(why: str | None) -> None:
    """Begin to watch: torch is imported, and nothing of the script's has used it yet; `why` it has no hollow GPU."""
    if why:
        _write({"kind": "no device", "why": why})
        return

    def tell_architectures() -> None:  # once CUDA is used: whoever asked cannot fork users of it
        flags = str(torch._C._cuda_getArchFlags()).split()
        os.environ["HOLLOW_ARCHS"] = ",".join({re.sub(r"\D", "", flag) for flag in flags})

    torch.cuda._lazy_call(tell_architectures)
    watch = Watch()
    watch.write_stack_on_signal()
    following: Any = import_module("gcprof_values")
    if "GCPROF_WORK" in os.environ:
        watch.work = following.Work(_write, watch)
        following.observers.append(watch.work)
    if os.environ.get("GCPROF_VALUES") != "off":  # as the benchmark of their cost has it
        watch.values = following.Values(
            lambda row: _write({**row, "line": row["line"] or watch.line, "step": watch.step}), watch.end_unknown, watch
        )
        watch.values.begin()
    watch.begin()
    models.begin(watch, _write)
    replaced: Any = import_module("gcprof_replaced")
    replaced.begin(note)
    replaced.tell_missing(note)
    if {"RANK", "LOCAL_RANK"} & set(os.environ):
        _write({"kind": "begun"})  # others wait for this process, whether it comes to use a GPU or not


_file: list[IO[str]] = []
_kept: list[Callable[[dict[str, Any]], None]] = []  # where lines go instead of a file: `gcprof.watch()`


def _path(kind: str) -> str:
    """Return this process's file of a kind: RANK.PID.KIND."""
    rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", ""))
    return os.path.join(os.environ["GCPROF_WATCH"], f"{rank or '-'}.{os.getpid()}.{kind}")


def _write(line: dict[str, Any]) -> None:
    if _kept:
        _kept[0](line)
        return
    if not _file:
        _file.append(open(_path("jsonl"), "a", encoding="utf-8"))  # noqa: SIM115  open as long as the process
        _write({"kind": "torch", "version": torch.__version__, "file": torch.__file__, "python": sys.executable})
    _file[0].write(json.dumps(line) + "\n")
    _file[0].flush()


_watches: list[Any] = []  # the `Watch` that is on
_lock = threading.Lock()
_observed: list[Callable[..., Any]] = []


@cache
def note(text: str) -> None:
    """Say once what is not as it would be on a GPU."""
    _write({"kind": "note", "text": text})


class Watch:
    """Which phase the script is in, and the marks between them.

    One that `is_always_told` writes phases in which no GPU was used too.
    """

    def __init__(self, *, is_always_told: bool = False) -> None:
        self.phase, self.line = "start", ""
        self.step = 0  # optimizer steps so far: those of the optimizer that stepped first
        self.depth = 0  # 1 within the call of a module; what that calls has no hooks
        self.held = 0  # phases within a phase: saving, and a backward within a forward
        self.main: Callable[[], Any] = lambda: None  # the optimizer whose steps are counted, if it still lives
        self.module = ""
        self.root: Callable[[], Any] = lambda: None  # the model of that class, if it still lives
        self.holders: Any = holding.Holders()  # of the peaks
        self.is_aside = False  # in a forward of the trained model that is no part of its step
        self.work: Any = None  # counts what operators compute, where that is asked for
        self.costing: Any = None  # traces a step for a plan, where that is asked for
        self.process, self.thread = os.getpid(), threading.get_ident()
        self.is_on = False
        self.num_captured = 0  # steps in the CUDA graph that is captured
        self.is_by_hand: bool | None = None  # whether there is no optimizer, so that backward passes are counted
        self.is_told = self.is_ended = False  # that the process raised, or ended
        self._steps, self._is_always_told = int(MAIN_STEPS or 0), is_always_told
        self.values: Any = None  # of a hollow GPU
        self._undo = ExitStack()

    def begin(self) -> None:
        """Watch until the process ends."""
        _end_loaders()
        if hasattr(torch._C, "_cuda_memorySnapshot") and not CHAIN_STEP:  # whose trace records the history itself
            self.holders.begin()
        self.start(None)
        self._know_graphs()
        self._watch_processes()
        self._end_with_process()
        sys.excepthook = partial(self._raised, sys.excepthook)

    def _end_with_process(self) -> None:
        leave = os._exit

        def exit_at_once(status: int) -> NoReturn:
            if not status:  # it ends as it wishes
                self.end_process()
            leave(status)

        os._exit = exit_at_once
        atexit.register(self.end_process)

    def start(self, keep: Callable[[dict[str, Any]], None] | None) -> None:
        """Begin to watch this thread; `keep` gets the lines, instead of a file.

        Raises RuntimeError where this process is watched already.
        """
        with _lock:
            if _watches:
                raise RuntimeError("this process is watched already: by another `with gcprof.watch()`, or by gcprof")
            _watches.append(self)
            _kept[:] = [keep] if keep else []
        try:
            self.is_on = True
            counters.begin()
            warnings.filterwarnings("ignore", message="Using `torch.compile.module.` when there are global hooks")
            library: Any = warnings  # whose list may be another one later
            ours = library.filters[0]
            self._undo.callback(lambda: ours in library.filters and library.filters.remove(ours))
            self.every = modules.register_module_forward_pre_hook(self._before_forward)
            self.outermost: Any = None  # its hook, while it is called
            self._undo.callback(lambda: self.every.remove())
            self._undo.callback(self._forget_outermost)
            self._undo.callback(optimizers.register_optimizer_step_pre_hook(self._before_step).remove)
            self._undo.callback(optimizers.register_optimizer_step_post_hook(self._after_step).remove)
            counters.on_reset = lambda device: self.holders.reset(self.phase, self.line, device)
            autograd: Any = torch.autograd
            self._replace(autograd, "backward", self._around(autograd.backward, "backward", "after the backward"))
            self._replace(autograd, "grad", self._around(autograd.grad, "backward", "after the backward"))
            self._replace(torch, "save", self._around(torch.save, "saving", None))
            attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
            if attach and not _observed:  # once and for all: PyTorch cannot take an observer away
                _observed.append(lambda *words: [watch.out_of_memory(*words) for watch in _watches])
                torch.cuda._lazy_call(partial(attach, _observed[0]))  # no sooner: who has begun to use CUDA cannot fork
        except BaseException:  # raised again
            self._remove()
            raise

    def end(self, error: BaseException | None) -> None:
        """End what was started, and take all of it away again; what others have put over it stays."""
        if error is not None:
            self.tell_raised(error)
        self.end_process()
        self._remove()

    def _remove(self) -> None:
        with _lock:
            _watches.remove(self)
            _kept.clear()
        self.is_on = False
        self._undo.close()
        counters.on_reset = lambda device: None
        counters.end()

    def _replace(self, owner: Any, name: str, ours: Any) -> None:
        plain = getattr(owner, name)
        setattr(owner, name, ours)

        def put_back() -> None:
            if getattr(owner, name) is ours:
                setattr(owner, name, plain)

        self._undo.callback(put_back)

    # ---- phases

    def mark(self, phase: str, line: str | None = None) -> None:
        """End the phase that was, and begin another; the phase that is goes on."""
        if phase == self.phase or os.getpid() != self.process or not self.is_on:
            return
        self._tell()
        if self.costing:
            self.costing.mark(phase)
        was, self.phase, self.is_aside = self.phase, phase, False
        self.line = lines.line_now() if line is None else line
        if was == "after the backward" and phase != "optimizer":
            self._count_backward()

    def write_stack_on_signal(self) -> None:
        """Have the main thread's stack written to a file when gcprof's limit ends the process, and the phase told.

        It is told without what held its peak, which can take seconds to find; not where the process is within C code.
        """
        file = open(_path("stack"), "w", encoding="utf-8")  # noqa: SIM115  open as long as the process

        def tell(number: int, frame: object) -> None:
            self.holders = holding.Holders()
            self._tell()
            file.write(TOLD)
            file.flush()

        if threading.current_thread() is threading.main_thread():
            signal.signal(STACK_SIGNAL, tell)
        faulthandler.register(STACK_SIGNAL, file=file, all_threads=False, chain=True)

    @property
    def now(self) -> dict[str, Any]:
        """Where the script is, as rows have it."""
        return {"phase": self.phase, "step": self.step, "line": self.line, "module": self.module}

    def _tell(self) -> None:
        devices = counters.read()
        if self._is_always_told or any(reserved for _, _, reserved in devices.values()):
            held = self.holders.ended(self.phase, self.step, self.line, devices)
            _write({"kind": "phase", **self.now, "devices": devices, **held})

    def _before_forward(self, module: Any, arguments: Any) -> None:
        if torch.compiler.is_compiling() or not self._is_watched():
            return
        if not self.held:
            if torch.is_grad_enabled():
                name = models.name_of(module)
                if name != self.module and any(one.requires_grad for one in module.parameters()):  # a loss is no model
                    self.module = name
                if name == self.module:
                    self.root = weakref.ref(module)
                self.holders.knows(module)
                self.mark("forward")
            elif self.phase not in ("evaluation", "generation") and (self._is_always_told or counters.is_used):
                self.holders.knows(module)
                calls = {frame.f_code.co_name for frame, _ in traceback.walk_stack(sys._getframe(1))}
                self.mark("generation" if GENERATES & calls else "evaluation")
                self.is_aside = self.phase == "generation" or self.root() is module  # not so of a teacher
            self.holders.called(self.phase, self.line, arguments, holding.call_of(sys._getframe(1)))
        self.depth = 1
        self.every.remove()  # a hook on every module costs 5 us for each of them
        self._forget_outermost()
        self.outermost = module.register_forward_hook(self._after_forward, always_call=True)

    def _after_forward(self, module: Any, arguments: Any, output: Any) -> None:
        if not self._is_watched():
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
        if self.held or not self._is_watched():
            return None
        self.holders.knows(optimizer)
        if self.main() is None and (model := models.model_of(self.root(), optimizer)) is not None:
            self.module = models.name_of(model)
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
        if self.held or not self._is_watched():
            return
        self.mark("after the step")
        self.is_by_hand = False
        if self.main() is None:  # the first one, or that of a script that goes on with another
            self.main = weakref.ref(optimizer)
        if self.main() is optimizer:
            self._count_step()

    def _count_backward(self) -> None:
        """Count a backward pass, and what followed it, as a step where there is no optimizer to make any."""
        if self.is_by_hand is None:
            # in a notebook, where others may be left, the optimizer has parameters of this model
            self.is_by_hand = not models.has_optimizer(self.root() if _kept else None)
            if self.is_by_hand:
                _write({"kind": "by hand"})
        if self.is_by_hand:
            self._count_step()

    def _count_step(self) -> None:
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            self.num_captured += 1  # of a graph, whose replays are steps
            return
        self.step += 1
        self.holders.stepped(self.step)
        if self.work:
            self.work.stepped(self.step)
        if self.costing:
            self.costing.stepped(self.step)
        if self._steps and self.step >= self._steps:
            if self.step > self._steps:  # the script caught the first one
                os._exit(0)
            raise SystemExit(0)

    def _is_watched(self) -> bool:
        """Whether this is the thread that is watched."""
        return self.is_on and threading.get_ident() == self.thread

    def _around(self, function: Callable[..., Any], phase: str, after: str | None) -> Callable[..., Any]:
        """Return a function that is a phase of its own, outside of others; then the one `after`, or that before."""

        @wraps(function)
        def call(*words: Any, **keywords: Any) -> Any:
            if self.held or self.depth or not self._is_watched():
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

        return call

    def _know_graphs(self) -> None:
        """Have the replay of a CUDA graph be a phase, and as many steps as were captured in it; those are none yet."""
        graph: Any = torch.cuda.CUDAGraph
        captured: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # steps in each graph
        watch, ends, replays = self, graph.capture_end, self._around(graph.replay, "graph replay", None)

        @wraps(ends)
        def capture_end(self: Any) -> Any:
            captured[self], watch.num_captured = watch.num_captured, 0
            return ends(self)

        @wraps(graph.replay)
        def replay(self: Any) -> Any:
            if watch.work:
                watch.work.replayed()
            result = replays(self)
            for _ in range(captured.get(self, 0)):
                watch._count_step()
            return result

        graph.capture_end, graph.replay = capture_end, replay

    # ---- ends

    def end_unknown(self, error: str, why: str, line: str) -> None:
        """End the process for what is not known; an exception could be caught, and the script go on."""
        self._tell()
        _write({"kind": "raised", "error": error, "text": why, "line": line, "time": time.time()})
        print(f"gcprof: {why}", file=sys.stderr, flush=True)
        os._exit(3)  # as where there is no GPU

    def out_of_memory(self, device: int, asked: int, total: int, free: int) -> None:
        """Tell what is live where the allocator has no memory left."""
        sized = self.values.why_short() if self.values else None
        if sized:
            line = lines.line_now() or self.line
            why = f"memory runs out at {line} for a size, {sized[1]}, of values that a hollow GPU does not compute"
            self.end_unknown("assumed size", f"{why}: {sized[0]}", line)
        with suppress(Exception):  # within the allocator: what it raises would hide the script's own error
            row = {"kind": "out of memory", "device": device, "asked": asked, **self.now}
            held: list[dict[str, Any]] = []
            with suppress(Exception):
                held = self.holders.now(self.phase, self.line, device)
            _write({**row, "line": lines.line_now() or self.line, "holders": held})

    def _raised(self, plain: Callable[..., None], kind: Any, error: BaseException, trace: Any) -> None:
        self.tell_raised(error)
        for known in lines.causes(error):
            known.__traceback__ = lines.without_ours(known.__traceback__)
        plain(kind, error, error.__traceback__)

    def tell_raised(self, error: BaseException) -> None:
        """Write that this error ends the process, or the watch."""
        if os.getpid() == self.process and not self.is_told:
            self.is_told = True
            frames = [one for one in traceback.extract_tb(error.__traceback__) if lines.is_the_users(one.filename)]
            where = f"{lines.short(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
            why = self.values.why_unreadable(error) if self.values else ""
            read = self.values.of_reading(where) if self.values else ""
            text = {"error": type(error).__name__, "text": why + str(error)[:500] + read, "line": where}
            _write({"kind": "raised", **text, "time": time.time()})

    def _tell_last(self) -> None:
        """Tell what is known at the end of the process alone."""
        self._tell()

    def end_process(self) -> None:
        """Tell the last phase and what is known of the whole process, once."""
        if os.getpid() == self.process and not self.is_ended:
            self.is_ended = True
            with suppress(RuntimeError):  # CUDA may be gone
                self._tell_last()
            if self.phase == "after the backward" and self.is_by_hand is not False:
                self._steps = 0
                self._count_backward()
            if _file or _kept:
                growth = self.holders.grown(self.phase, self.line)
                _write({"kind": "holders", "why": self.holders.why, "growth": growth})
                _write({"kind": "end", "steps": self.step})

    def _watch_processes(self) -> None:
        """Watch processes that multiprocessing forks, and hear of errors that it catches in all that it starts."""
        kind: Any = processes.BaseProcess
        run, watch = kind.run, self

        @wraps(run)
        def run_and_tell(self: Any) -> None:
            try:
                run(self)
            except BaseException as error:  # raised again
                if not isinstance(error, SystemExit):
                    watch.tell_raised(error)
                elif error.code:
                    watch.tell_raised(error.__context__ or error)  # torch.multiprocessing ends so after an error
                raise
            finally:
                watch.end_process()

        kind.run = run_and_tell
        os.register_at_fork(after_in_child=self.begin_forked)

    def begin_forked(self) -> None:
        _file.clear()
        self.process, self.thread = os.getpid(), threading.get_ident()
        self.phase, self.line, self.step, self.main = "start", "", 0, lambda: None
        self.is_told = self.is_ended = False


def _end_loaders() -> None:
    """Let every iteration over a DataLoader end after as many batches as are asked for, if they are."""
    iterator: Any = dataloader._BaseDataLoaderIter
    following = iterator.__next__

    def __next__(self: Any) -> Any:
        if self._num_yielded >= int(MAIN_BATCHES or 0):
            raise StopIteration
        return following(self)

    if MAIN_BATCHES:
        iterator.__next__ = __next__
