"""The server process: imports torch once, then forks a child for every request. Knows nothing of trials.

Imports that take seconds are deferred until they are used: of PyTorch's compiler, and of scipy's optimizers.

A request is one line of JSON on a Unix socket: {"number", "entry", "needs", "text", "folder"} for a child, sent with
two file descriptors, its channel and its output; or {"kill", "signal"}. The modules that a child needs are imported
here, once for all children. The server sends {"number", "pid"} when a child begins, the same with "status" when it has
ended, and "refused" if the system cannot start it. Processes that a child started in a session of their own are adopted
by the server when the child has ended, and killed. When the client is gone, however it died, the server kills every
child's process group and ends. It never uses CUDA, which does not survive a fork once it is initialized.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from profiler.rehearsal.device import load, open_if_asked

PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2), on Linux
CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
ADOPTED_SECONDS = 1.0  # for killed processes to end; one that hangs in the kernel ends when it can
COMPILER = "torch._dynamo"
SOURCE = f"{COMPILER}.source"  # describes where the values in compiled code come from
OTHER_SOURCES = ("RandomValueSource", "CallMethodItemSource", "FloatTensorSource")  # looked up, never instantiated
CONFIGURATION = f"{COMPILER}.config"  # imports nothing else of the package
USED_LATE = {  # functions and classes that model libraries import, and seldom call, by module
    f"{COMPILER}.utils": ("is_compile_supported",),  # torchvision.ops
    f"{COMPILER}._trace_wrapped_higher_order_op": ("TransformGetItemToIndex",),  # transformers.masking_utils
    "scipy.optimize": ("linear_sum_assignment",),  # transformers.loss
}


def main(descriptor: int, client: int, preload: Sequence[str], *, rehearses: bool = False) -> None:
    """Serve the process `client`, at the other end of the socket, until it is gone.

    With `rehearses`, its children have the libraries of the hollow CUDA device, and choose a GPU each.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the client decides
    die_with_parent(client)  # nobody watches the socket while torch is being imported
    load() if rehearses else open_if_asked()
    gc.disable()  # else a quarter of the time to import torch goes to garbage collection
    for name in preload:
        import_module(name)
    defer_compiler()  # what models import next imports it seldom for a use
    gc.freeze()  # so that collections in children need not scan it
    gc.enable()
    prctl(PARENT_DEATH_SIGNAL, 0)  # from here on the socket tells, so that the children's descendants are killed too
    prctl(CHILD_SUBREAPER, 1)  # descendants whose own parent ends become children of this process
    _Server(socket.socket(fileno=descriptor)).serve()
    os._exit(0)  # a normal exit takes half a second with torch, and the client waits for it


class _Server:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, int] = {}  # pid -> number of the request
        self._woken, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def serve(self) -> None:
        """Fork children as the client asks, and report how they end, until the client is gone; then kill them all."""
        self._say({"ready": True})
        selector = selectors.DefaultSelector()
        selector.register(self._control, selectors.EVENT_READ)
        selector.register(self._woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is self._control and not self._accept():
                    self._kill_all()
                    return
                if key.fileobj == self._woken:
                    os.read(self._woken, 4096)
                    self._reap()

    def _accept(self) -> bool:
        """Carry out what the client asks; return False if it is gone."""
        try:
            text, descriptors, _, _ = socket.recv_fds(self._control, 1 << 20, 2)
            more = text
            while more and not text.endswith(b"\n"):
                more = self._control.recv(1 << 20)
                text += more
        except ConnectionError:
            return False
        if not more:  # also if it died in the middle of a request
            return False
        for line in text.splitlines():
            request = json.loads(line)
            if "kill" in request:
                self._kill(request["kill"], request["signal"])
            else:
                self._fork(request, descriptors)
        return True

    def _fork(self, request: dict[str, Any], descriptors: list[int]) -> None:
        for name in request["needs"]:
            if name not in sys.modules:
                with suppress(Exception):  # the child fails in the same way, and says so
                    import_module(name)
                gc.freeze()
        server, refused = os.getpid(), None
        try:
            pid = os.fork()
        except OSError as error:  # the system can start no process: the server can still say so
            pid, refused = -1, error.strerror
        if pid == 0:
            self._become_child(request, *descriptors, server=server)
        for descriptor in descriptors:
            os.close(descriptor)
        if refused:
            self._say({"number": request["number"], "pid": None, "refused": refused})
            return
        self._children[pid] = int(request["number"])
        self._say({"number": request["number"], "pid": pid})

    def _become_child(self, request: dict[str, Any], channel: int, output: int, *, server: int) -> None:
        """Run the request in a session of its own and end the process: never returns."""
        status = 1
        try:
            with suppress(PermissionError):  # it is a group leader already; then it is signaled alone
                os.setsid()
            die_with_parent(server)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            os.close(self._woken)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            if request["folder"]:  # the client may have moved since it started this server
                os.chdir(request["folder"])
            module, _, name = request["entry"].partition(":")
            getattr(import_module(module), name)(request["text"], channel)
            status = 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        except BaseException:  # noqa: BLE001  a forked child must never return into the server
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        """Report children that have ended, and kill what they left behind while their process ids are still theirs."""
        for pid in list(self._children):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                self._kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
                number = self._children.pop(pid)
                if not self._children:  # their parent is unknown while another child runs
                    self._end_adopted()
                self._say({"number": number, "pid": pid, "status": os.waitstatus_to_exitcode(status)})

    def _kill(self, pid: int, number: int) -> None:
        """Signal a child and all of its process group, as far as they are still there."""
        if pid not in self._children:
            return
        for kill in (os.killpg, os.kill):
            try:
                kill(pid, number)
            except (ProcessLookupError, PermissionError):  # no group yet; or macOS, for a group of zombies
                continue

    def _kill_all(self) -> None:
        for pid in self._children:
            self._kill(pid, signal.SIGKILL)
        self._children.clear()
        self._end_adopted()

    def _end_adopted(self) -> None:
        """Kill processes that this one adopted when the children that started them ended, and those adopted by that."""
        until = time.monotonic() + ADOPTED_SECONDS
        while (left := offspring() - self._children.keys()) and time.monotonic() < until:
            for pid in left:  # a process keeps its id until it is waited for
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
            time.sleep(0.001)

    def _say(self, message: dict[str, object]) -> None:
        try:
            self._control.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._kill_all()
            os._exit(1)


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent dies, if the system can do that (Linux)."""
    prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


def prctl(option: int, value: int) -> None:
    """Set an option of this process where the system has it (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def offspring() -> set[int]:
    """Return the pids of this process's children, ended ones too; none if the system does not list them."""
    lists = Path("/proc/self/task").glob("*/children")
    return {int(pid) for children in lists for pid in children.read_text(encoding="ascii").split()}


def defer_compiler() -> None:
    """Defer the import of the compiler, which takes half as long as that of torch.

    PyTorch imports it for fake tensors and for optimizer steps, to use a few functions that do nothing outside of
    compiled code. Stand-ins replace those; any other attribute imports the compiler, into the same module object. Model
    libraries import a few names more (USED_LATE), whose stand-ins import the real ones when they are called. Only for
    gcprof's own processes. Has no effect if the compiler is imported already.
    """
    if COMPILER in sys.modules:
        return
    spec = find_spec(COMPILER)
    assert spec is not None
    compiler, source = module_from_spec(spec), ModuleType(SOURCE)
    vars(compiler).update(disable=_disable, graph_break=_graph_break, source=source)
    vars(source).update(dict.fromkeys(OTHER_SOURCES, _OtherSource), ConstantSource=_Source)
    compiler.__class__ = source.__class__ = LateModule
    sys.modules |= {COMPILER: compiler, SOURCE: source}
    setattr(sys.modules["torch"], "_dynamo", compiler)  # noqa: B010  the import sets it, too
    sys.meta_path.insert(0, _Late())


def is_late() -> bool:
    """Whether the import of the compiler is deferred and has not happened yet."""
    return type(sys.modules.get(COMPILER)) is LateModule


def import_now() -> None:
    """Replace the stand-ins by the compiler, imported into the same module object."""
    compiler = sys.modules[COMPILER]
    for name in ("disable", "graph_break", "source"):
        del vars(compiler)[name]
    del sys.modules[SOURCE]
    stand_ins = {name: sys.modules.pop(name) for name in USED_LATE if name.startswith(COMPILER) and _is_stand_in(name)}
    compiler.__class__ = ModuleType
    assert compiler.__spec__ is not None
    assert compiler.__spec__.loader is not None
    compiler.__spec__.loader.exec_module(compiler)
    for name, stand_in in stand_ins.items():
        _replace(name, stand_in)


def _import(name: str) -> ModuleType:
    """Import a module instead of its stand-in, if it has one."""
    if name.startswith(COMPILER):
        if is_late():
            import_now()
    elif _is_stand_in(name):
        _replace(name, sys.modules.pop(name))
    return import_module(name)


def _is_stand_in(name: str) -> bool:
    return type(sys.modules.get(name)) is LateModule


def _replace(name: str, stand_in: ModuleType) -> None:
    """Give the real functions and classes to all modules that have imported those of a stand-in."""
    _real.add(name)
    real = import_module(name)
    for holder in list(sys.modules.values()):
        names = getattr(holder, "__dict__", {})
        for late in USED_LATE[name]:
            if names.get(late) is vars(stand_in)[late]:
                names[late] = getattr(real, late)


_real: set[str] = set()  # modules of USED_LATE that were needed


class LateModule(ModuleType):
    """Stands in for a module until an attribute is used that it does not have."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if is_late() and f"{self.__name__}.{name}" == CONFIGURATION:
            return import_module(CONFIGURATION)  # torch.utils.checkpoint reads it at every call since torch 2.15
        return getattr(_import(self.__name__), name)


class _Late(MetaPathFinder):
    """Import finder of the stand-ins: imports what one stands in for before any submodule of it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = name.rpartition(".")[0]
        if name in USED_LATE and name not in _real and (is_late() or not name.startswith(COMPILER)):
            return ModuleSpec(name, _StandIns(), is_package=True)
        if name == CONFIGURATION or not (_is_stand_in(package) or (name.startswith(f"{COMPILER}.") and is_late())):
            return None
        real = _import(package)
        return (
            ModuleSpec(name, _Imported(sys.modules[name]))
            if name in sys.modules
            else PathFinder.find_spec(name, real.__path__)
        )


class _StandIns(Loader):
    """Loader of a stand-in for a module of USED_LATE."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return LateModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update({name: _used_late(module.__name__, name) for name in USED_LATE[module.__name__]})


def _used_late(module: str, name: str) -> Callable[..., Any]:
    """Return a function that calls the real function, or makes an instance of the real class."""

    def call(*arguments: Any, **named: Any) -> Any:
        return getattr(_import(module), name)(*arguments, **named)

    return call


class _Imported(Loader):
    """Loader that returns a module that was imported with its package."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Source:
    """Stand-in for ConstantSource: holds a name, and is never read as long as there are no symbolic shapes."""

    def __init__(self, source_name: str) -> None:
        self.source_name = source_name


class _OtherSource:
    """Stand-in for source types of which no instance exists before the compiler makes one."""


def _disable(fn: Callable[..., Any] | None = None, recursive: bool = True, **keywords: Any) -> Any:
    """Stand-in for torch._dynamo.disable: calls the function itself until the compiler is imported."""
    compiler: Any = sys.modules[COMPILER]
    if fn is None or not recursive:
        import_now()
        return compiler.disable(fn, recursive, **keywords)
    disabled: list[Callable[..., Any]] = []

    @wraps(fn)
    def call(*arguments: Any, **named: Any) -> Any:
        if is_late():
            return fn(*arguments, **named)
        if not disabled:
            disabled.append(compiler.disable(fn, recursive, **keywords))
        return disabled[0](*arguments, **named)

    return call


def _graph_break(msg: str = "") -> None:
    """Stand-in for torch._dynamo.graph_break, which does nothing outside of compiled code."""
