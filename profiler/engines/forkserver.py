"""The server process: imports torch once, then forks a child for every request. Knows nothing of trials.

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
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from profiler.engines import late_compiler
from profiler.rehearsal.device import load, open_if_asked

PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2), on Linux
CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
ADOPTED_SECONDS = 1.0  # for killed processes to end; one that hangs in the kernel ends when it can


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
    late_compiler.install()  # what models import next imports it seldom for a use
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
