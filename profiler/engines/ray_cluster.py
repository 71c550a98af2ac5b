"""Runs trials as tasks of a Ray cluster, each with one GPU of a kind or with CPU cores.

A task returns its record and its log; only this process writes files. Ray's runtime environment sends this package and,
for users' code, the current folder. Tasks that are lost with their node are retried by this process, not by Ray, which
would retry forever one that needs more memory than its node has.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from profiler.core import gpu_specs, safe_files
from profiler.core.case import Case, Trial, decode, encode
from profiler.core.catalogue import Count
from profiler.core.errors import UserError, load_module
from profiler.core.gpu_specs import CUDA, KIND, parse
from profiler.core.record import Environment, Record
from profiler.core.safe_files import hide, hide_bytes
from profiler.engines import WORKER
from profiler.engines.local import Local, in_waves, lost
from profiler.runs import store

PACKAGE = Path(__file__).parents[1]
LEFT_HERE = [".?*", "__pycache__", "results"]  # what of the current folder is not sent, as what a .gitignore names
ACCELERATOR = "accelerator_type:"  # prefix of Ray's name for the resource of a node with such GPUs
MARKED = 1e-3  # of that resource, which each task with the accelerator takes
STARTING = "`ray start --head` starts one; --engine ray:address=local is this machine alone"
VISIBLE = "CUDA_VISIBLE_DEVICES"  # Ray sets it anew for each task
ATTEMPTS = 3
LOOK_SECONDS = 2.0  # between checks for lost nodes, while nothing comes back


def connect(plan: tuple[Trial, ...] = (), *, address: str = "auto", cpus: Count = 1, wait: Count = 300) -> RayCluster:
    """Return the engine of a Ray cluster; a task has a GPU of a kind or `cpus` cores, and waits `wait` s for a node."""
    return RayCluster(plan=plan, address=address, cpus=cpus, wait=wait)


@dataclass(kw_only=True, eq=False)
class RayCluster:
    """Joins the cluster on entry and leaves it on exit: Ray then ends all of this run's workers.

    `plan` is what will be run, as far as known: a survey covers its kinds of GPU, or all kinds if it names none.
    """

    plan: tuple[Trial, ...]
    address: str
    cpus: int
    wait: float
    stage_seconds: float = 600.0
    logs: Path | None = None

    def __post_init__(self) -> None:
        self._ray: Any = load_module("ray")
        names = dict.fromkeys(trial.case.device for trial in self.plan)
        self._kinds = tuple(name for name in names if parse(name).kind)
        self._sends_folder = _has_own_code(trial.case for trial in self.plan)
        self._accelerators: dict[str, str] = {}  # Ray's names of the kinds, also of lost nodes

    def __enter__(self) -> RayCluster:
        self._join()
        return self

    def __exit__(self, *error: object) -> None:
        self._ray.shutdown()

    def survey(self) -> dict[str, Environment]:
        """Return the CPU of a node, and a GPU of each kind. Raises UserError (exit code 3) for a missing kind."""
        kinds = self._kinds_there()
        for name in self._kinds:
            if name not in kinds:
                there = ", ".join(str(parse(kind).kind) for kind in kinds) or "no GPU of a kind that it knows"
                raise UserError(f"--gpus: the cluster has no '{parse(name).kind}'", hint=f"it has {there}", exit_code=3)
        failing = "torch does not work on a node"
        asked = {name: self._asked(name, f"{WORKER}:survey", "", failing) for name in self._kinds or ("cpu", *kinds)}
        devices: dict[str, Environment] = {}
        for name, task in asked.items():
            found, why, hint = self._surveyed(name, task)
            if why and (name == "cpu" or name in self._kinds):
                lacking = f"--gpus: '{parse(name).kind}' cannot be had" if parse(name).kind else "no node takes a task"
                raise UserError(f"{lacking}: {why}", hint=hint, exit_code=3)
            devices |= found
        return devices

    def _surveyed(self, name: str, task: Any) -> tuple[dict[str, Environment], str, str]:
        """Return the CPU and the device of the surveyed node; or nothing, why, and what to do."""
        try:
            devices = decode(json.dumps(self._answer(task, self.wait)["devices"]), dict[str, Environment])
        except self._ray.exceptions.GetTimeoutError:
            self._ray.cancel(task, force=True)
            return {}, f"none was free for {self.wait:g} s", "ray:wait=SECONDS waits longer"
        device = devices.get(parse(name).torch_device)
        if device is None:
            return {}, "torch sees no CUDA device there", "these nodes need torch with CUDA"
        if not parse(name).accepts(device.device_name or ""):
            return {}, f"Ray gives a {device.device_name} for it", "name the accelerators as they are"
        return {"cpu": devices["cpu"], name: device}, "", ""

    def ask(self, entry: str, text: str, *, failing: str, rehearses: bool = False) -> dict[str, Any]:
        """Call `entry` ("module:function") with `text` on some node; return its answer. Raises as `Local.ask` does."""
        return self._answer(self._asked("cpu", entry, text, failing, rehearses), self.wait + self.stage_seconds)

    def run(self, plan: Iterable[Trial], done: Iterable[Record] = ()) -> Iterator[Record]:
        """Yield one record for each trial that is owed. Closing the iterator cancels queued and running trials.

        Raises UserError if the user's own code cannot be sent to the nodes.
        """
        trials = [_placed(trial) for trial in plan]
        if not self._sends_folder and _has_own_code(trial.case for trial in trials):
            self._sends_folder = True
            self._ray.shutdown()  # what a job sends is fixed when it begins
            self._join()
        return in_waves(self._wave, trials, done, widely=True)

    def _wave(self, trials: list[Trial]) -> Iterator[Record]:
        """Run trials in any order; a device that no node could run for `wait` seconds is given up."""
        under_way: dict[Future[Any], tuple[Trial, int]] = {}  # with the number of the attempt
        back: SimpleQueue[Future[Any]] = SimpleQueue()  # is waited for in Python, where signals are handled
        gone: dict[str, float] = {}  # by device: since when no node can run its trials

        def send(trial: Trial, attempt: int) -> None:
            task = self._ray.remote(max_retries=0, max_calls=0)(run_trial).options(**self._needs(trial.case.device))
            future = task.remote(encode(trial), self.stage_seconds).future()
            under_way[future] = trial, attempt
            future.add_done_callback(back.put)

        try:
            for trial in trials:
                send(trial, 1)
            while under_way:
                try:
                    future = back.get(timeout=LOOK_SECONDS)
                except Empty:
                    for device in {trial.case.device for trial, _ in under_way.values()}:
                        since = gone.setdefault(device, time.monotonic())
                        if self._has_place(device):
                            del gone[device]
                        elif time.monotonic() - since >= self.wait:
                            sent = [future for future, (trial, _) in under_way.items() if trial.case.device == device]
                            self._cancel(sent)
                            why = f"no node of the cluster could take it for {self.wait:g} s"
                            yield from (lost(under_way.pop(future)[0], "crashed", why) for future in sent)
                    continue
                if future in under_way:  # else it was canceled
                    trial, attempt = under_way.pop(future)
                    record = self._record(future, trial, attempt)
                    if record:
                        yield record
                    else:
                        send(trial, attempt + 1)
        finally:
            self._cancel(under_way)

    def _cancel(self, futures: Iterable[Any]) -> None:
        for future in futures:
            self._ray.cancel(future.object_ref, force=True)

    def _record(self, future: Future[Any], trial: Trial, attempt: int) -> Record | None:
        """Return the record of a task that is over, and write its log; None if it was lost and is to be sent again."""
        exceptions = self._ray.exceptions
        try:
            encoded, log = future.result()
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, UserError):  # a fault of the node, not of the trial
                return lost(trial, "crashed", f"on the node: {error.cause.message}; {error.cause.hint}")
            return lost(trial, "failed", _why(error))
        except (
            exceptions.NodeDiedError, exceptions.WorkerCrashedError, exceptions.ObjectLostError,
            exceptions.OutOfMemoryError, exceptions.LocalRayletDiedError,
        ) as error:  # fmt: skip
            if attempt < ATTEMPTS:
                return None
            return lost(trial, "crashed", f"its node or its worker there was lost, {attempt} times: {_why(error)}")
        except exceptions.RayError as error:
            return lost(trial, "crashed", f"its node or its worker there was lost: {_why(error)}")
        if self.logs and log:
            with suppress(OSError, UserError):  # a full disk does not lose the record
                self.logs.mkdir(exist_ok=True)
                safe_files.write(self.logs / f"{store.log_name(trial.key)}.log", hide_bytes(log))
        record: Record = decode(encoded, Record)
        record.keep_line(encoded)
        return record

    def _join(self) -> None:
        """Begin a job of the cluster, with the package and the user's code. Raises UserError (exit code 3)."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray's driver prints what nodes report, such as their deaths, on stdout, which is for results. `log_to_driver`
        # does not cover that (listen_error_messages in ray/_private/worker.py), and this switch of Ray's own debugger
        # (ray/util/rpdb.py) is the only one that does.
        self._ray._private.worker._worker_logs_enabled = False
        own = {"include_dashboard": False} if self.address == "local" else {}
        heeded = signal.getsignal(signal.SIGTERM)
        try:
            with tempfile.TemporaryDirectory(prefix="gcprof-") as packed:
                travels: dict[str, Any] = {"py_modules": [str(pack_package(Path(packed)))], "excludes": LEFT_HERE}
                if self._sends_folder:
                    travels["working_dir"] = "."
                self._ray.init(
                    address=self.address, runtime_env=travels, log_to_driver=False, logging_level=logging.ERROR, **own
                )
        except (OSError, RuntimeError, ValueError) as error:
            message = f"no Ray cluster at '{self.address}': {_why(error)}"
            raise UserError(message, hint=STARTING, exit_code=3) from error
        finally:
            if signal.getsignal(signal.SIGTERM) is not heeded:  # Ray's own would skip the cleanup of a run
                signal.signal(signal.SIGTERM, heeded)

    def _kinds_there(self) -> dict[str, str]:
        """Return Ray's names for the kinds of GPU in the cluster, by device name."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        words = {word.removeprefix(ACCELERATOR) for node in nodes for word in node if ACCELERATOR in word}
        return {CUDA + word.lower(): word for word in sorted(words) if KIND.fullmatch(word.lower())}

    def _needs(self, device: str) -> dict[str, Any]:
        """Return the resources that a task on that device requests of Ray."""
        if not parse(device).kind:
            return {"num_cpus": self.cpus}
        if device not in self._accelerators:
            self._accelerators |= self._kinds_there()
        return {"num_cpus": self.cpus, "num_gpus": 1, "accelerator_type": self._accelerators.get(device, device)}

    def _has_place(self, device: str) -> bool:
        """Whether any live node could run a task on that device if the node were idle."""
        needs = self._needs(device)
        resources = {"CPU": needs["num_cpus"], "GPU": needs.get("num_gpus", 0)}
        if "accelerator_type" in needs:
            resources[ACCELERATOR + needs["accelerator_type"]] = MARKED
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return any(all(node.get(name, 0) >= number for name, number in resources.items()) for node in nodes)

    def _asked(self, device: str, entry: str, text: str, failing: str, rehearses: bool = False) -> Any:
        task = self._ray.remote(max_retries=3, max_calls=0)(ask).options(**self._needs(device))  # 0 calls: no limit
        return task.remote(entry, text, failing, self.stage_seconds, rehearses)

    def _answer(self, task: Any, seconds: float) -> dict[str, Any]:
        """Return the answer of a task. Raises UserError if it failed, Ray's GetTimeoutError if it is late."""
        try:
            answer: dict[str, Any] = self._ray.get(task, timeout=seconds)
        except self._ray.exceptions.GetTimeoutError:
            raise
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, UserError):
                raise UserError(f"on a node: {cause.message}", hint=cause.hint, exit_code=cause.exit_code) from None
            message = f"a task of the cluster failed: {_why(error)}"
            raise UserError(message, hint="`ray status` shows more", exit_code=3) from error
        return answer


# What a task does in Ray's worker on a node


_engines: dict[tuple[Any, ...], Local] = {}  # at most one: later tasks need not import torch again


def run_trial(request: bytes, stage_seconds: float) -> tuple[bytes, bytes]:
    """Run a trial; return its record as JSON, and what it printed, capped and without secrets."""
    trial: Trial = decode(request, Trial)
    engine = _local(stage_seconds)
    with tempfile.TemporaryDirectory(prefix="gcprof-") as folder:
        engine.logs = Path(folder)
        (record,) = engine.run([trial])
        log = engine.logs / f"{store.log_name(trial.key)}.log"
        return record.take_line(), log.read_bytes() if log.exists() else b""


def ask(entry: str, text: str, failing: str, stage_seconds: float, rehearses: bool) -> dict[str, Any]:
    """Call a function with a text, in a child of the worker's fork server; return its answer."""
    return _local(stage_seconds).ask(entry, text, failing=failing, rehearses=rehearses)


def _local(stage_seconds: float) -> Local:
    """Return this worker's engine."""
    key = (os.environ.get(VISIBLE), stage_seconds)
    if key not in _engines:  # another GPU takes another server, whose environment its children inherit
        while _engines:
            _engines.popitem()[1].__exit__()
        engine = Local(stage_seconds=stage_seconds).__enter__()
        if os.environ.get(VISIBLE):
            engine.survey()  # reads the free bytes, so that a killed trial's memory can be waited for
        _engines[key] = engine
    return _engines[key]


# What is sent


def pack_package(folder: Path) -> Path:
    """Copy this package and its table of GPUs, which is not in it in a checkout, into a folder; return the copy."""
    target = folder / PACKAGE.name
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns(*LEFT_HERE))
    shutil.copytree(gpu_specs.folder(), target / "configs" / "devices", dirs_exist_ok=True)
    return target


def _has_own_code(cases: Iterable[Case]) -> bool:
    """Whether the cases name code or plans in the current folder. Raises UserError for a path that leads elsewhere."""
    files = store.code_files(cases)
    for name in files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            message = f"'{name}' cannot be sent to a cluster: its path is not relative to the current folder"
            raise UserError(message, hint="go to a folder above it, and name it from there, as in models/mine.py:make")
    return any(path is not None and path.resolve().is_relative_to(Path.cwd()) for path in files.values())


def _placed(trial: Trial) -> Trial:
    """Make the data folder absolute: data is not sent, and must be at the same place on every node."""
    data = trial.data_directory
    return msgspec.structs.replace(trial, data_directory=str(Path(data).absolute())) if data else trial


def _why(error: BaseException) -> str:
    """Return what went wrong, in one line; for a task that raised, its own error."""
    cause = getattr(error, "cause", None) or error
    lines = hide(str(cause)).strip().splitlines() or ["no message"]  # after hiding, as a secret may have many lines
    return f"{type(cause).__name__}: {lines[0]}"
