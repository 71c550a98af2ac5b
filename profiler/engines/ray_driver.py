"""Runs trials as tasks of a Ray cluster, each with one GPU of a kind or with CPU cores.

A task returns its record and its log; only this process writes files. Tasks that are lost with their node are retried
by this process, not by Ray, which would retry forever one that needs more memory than its node has.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray import exceptions

from profiler import __version__
from profiler.core import gpu_kinds, safe_files
from profiler.core.case import Trial, decode, encode
from profiler.core.errors import UserError
from profiler.core.record import Environment, Record
from profiler.core.secret_filter import hide, hide_bytes
from profiler.engines import WORKER, code_bundle, ray_task
from profiler.engines.child_outcome import lost
from profiler.engines.order import in_waves
from profiler.engines.ray_cluster import STARTING, refuse_silent
from profiler.engines.task_pool import ReturnedTrial, run_remotely
from profiler.runs import store

ACCELERATOR = "accelerator_type:"  # prefix of Ray's name for the resource of a node with such GPUs
MARKED = 1e-3  # of that resource, which each task with the accelerator takes
# errors that end a task through no fault of its own
LOST = (
    exceptions.NodeDiedError, exceptions.WorkerCrashedError, exceptions.ObjectLostError, exceptions.OutOfMemoryError,
    exceptions.LocalRayletDiedError,
)  # fmt: skip


class RayCluster:
    """Joins the cluster on entry and leaves it on exit: Ray then ends all of this run's workers.

    `plan` is what will be run, as far as known: the code that it names is sent to the nodes, and a survey covers its
    kinds of GPU, or all kinds if it names none. `cpus` are the cores of a task. `wait` is how many seconds a task waits
    for a node that the cluster does not have, and a survey for a free GPU.
    """

    def __init__(
        self,
        *,
        stage_seconds: float = 600.0,
        logs: Path | None = None,
        plan: tuple[Trial, ...] = (),
        address: str = "auto",
        cpus: int = 1,
        wait: float = 300,
    ) -> None:
        self.logs = logs
        self._kinds = tuple(name for name in dict.fromkeys(trial.case.device for trial in plan) if gpu_kinds.of(name))
        self._files = code_bundle.code(trial.case for trial in plan)
        self._address = address
        self._cpus = cpus
        self._wait = wait
        self._accelerators: dict[str, str] = {}  # Ray's names of the kinds, also of lost nodes
        self._on_node: dict[str, Any] = {
            "trial": f"{WORKER}:run_trial", "stage_seconds": stage_seconds, "version": __version__
        }  # fmt: skip
        self._ask = ray.remote(max_retries=3, max_calls=0)(ray_task.ask)
        self._run = ray.remote(max_retries=0, max_calls=0)(ray_task.run_trial)  # 0: no limit

    def __enter__(self) -> RayCluster:
        self._bundle = tempfile.TemporaryDirectory(prefix="gcprof-")
        try:
            refuse_silent(self._address)
            self._join()
        except BaseException:  # raised again
            self._bundle.cleanup()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        ray.shutdown()
        self._bundle.cleanup()

    def survey(self) -> dict[str, Environment]:
        """Return the CPU of a node, and a GPU of each kind. Raises UserError (exit code 3) for a missing kind."""
        kinds = _kinds_there()
        for name in self._kinds:
            if name not in kinds:
                hint = f"it has {', '.join(map(str, map(gpu_kinds.of, kinds))) or 'no GPU of a kind that it knows'}"
                raise UserError(f"--gpus: the cluster has no '{gpu_kinds.of(name)}'", hint=hint, exit_code=3)
        entry, failing = f"{WORKER}:survey", "torch does not work on a node"
        futures = {name: self._future(name, entry, "", failing) for name in self._kinds or ("cpu", *kinds)}
        devices: dict[str, Environment] = {}
        for name, future in futures.items():
            devices |= self._surveyed(name, future)
        return devices

    def ask(self, entry: str, text: str, *, failing: str) -> dict[str, Any]:
        """Call `entry` ("module:function") with `text` on some node; return its answer. Raises as `Local.ask` does."""
        return self._answer(self._future("cpu", entry, text, failing), self._wait + self._on_node["stage_seconds"])

    def run(self, plan: Iterable[Trial], done: Iterable[Record] = ()) -> Iterator[Record]:
        """Yield one record for each trial that is owed. Closing the iterator cancels queued and running trials.

        Raises UserError if the user's own code cannot be sent to the nodes.
        """
        trials = [_placed(trial) for trial in plan]
        files = code_bundle.code(trial.case for trial in trials)
        if not set(files) <= set(self._files):
            self._files = files
            ray.shutdown()  # a job's files are fixed when it begins
            self._join()
        return in_waves(self._wave, trials, done, widely=True)

    def _wave(self, trials: list[Trial]) -> Iterator[Record]:
        returned = run_remotely(
            trials,
            send=self._send,
            is_lost=lambda error: isinstance(error, LOST),
            has_place=self._has_place,
            patience=self._wait,
        )
        try:
            for returned_trial in returned:
                yield self._record(returned_trial)
        finally:
            returned.close()  # type: ignore[attr-defined]  # it is a generator

    def _join(self) -> None:
        """Begin a job of the cluster, with the package and the user's files. Raises UserError (exit code 3)."""
        packed = Path(self._bundle.name)
        (packed / "work").mkdir(exist_ok=True)
        (packed / "work" / "gcprof.txt").write_text(f"the folder of tasks of gcprof {__version__}\n", encoding="utf-8")
        code_bundle.pack_code(packed / "work", self._files)
        travels = {"py_modules": [str(code_bundle.pack_package(packed))], "working_dir": str(packed / "work")}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray's driver prints what nodes report, such as their deaths, on stdout, which is for results. `log_to_driver`
        # does not cover that (listen_error_messages in ray/_private/worker.py), and this switch of Ray's own debugger
        # (ray/util/rpdb.py) is the only one that does.
        ray._private.worker._worker_logs_enabled = False
        own = {"include_dashboard": False} if self._address == "local" else {}
        heeded = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(
                address=self._address, runtime_env=travels, log_to_driver=False, logging_level=logging.ERROR, **own
            )
        except (OSError, RuntimeError, ValueError) as error:
            message = f"no Ray cluster at '{self._address}': {_why(error)}"
            raise UserError(message, hint=STARTING, exit_code=3) from error
        finally:
            if signal.getsignal(signal.SIGTERM) is not heeded:  # Ray's own would skip the cleanup of a run
                signal.signal(signal.SIGTERM, heeded)

    def _needs(self, device: str) -> dict[str, Any]:
        """Return the resources that a task on that device requests of Ray."""
        if not gpu_kinds.of(device):
            return {"num_cpus": self._cpus}
        if device not in self._accelerators:
            self._accelerators |= _kinds_there()
        return {"num_cpus": self._cpus, "num_gpus": 1, "accelerator_type": self._accelerators.get(device, device)}

    def _has_place(self, device: str) -> bool:
        """Whether any live node could run a task on that device if the node were idle."""
        needs = self._needs(device)
        resources = {"CPU": needs["num_cpus"], "GPU": needs.get("num_gpus", 0)}
        if "accelerator_type" in needs:
            resources[ACCELERATOR + needs["accelerator_type"]] = MARKED
        return any(all(node.get(name, 0) >= number for name, number in resources.items()) for node in _nodes())

    def _future(self, device: str, entry: str, text: str, failing: str) -> Future[Any]:
        sent = self._ask.options(**self._needs(device)).remote(entry, text, failing, **self._on_node)
        future: Future[Any] = sent.future()
        return future

    def _answer(self, future: Future[Any], seconds: float) -> dict[str, Any]:
        """Return the answer of a task. Raises UserError if it failed or refused, TimeoutError if it is late."""
        try:
            answer = future.result(timeout=seconds)
        except exceptions.RayError as error:
            raise UserError(
                f"a task of the cluster failed: {_why(error)}", hint="`ray status` shows more", exit_code=3
            ) from error
        if "refused" in answer:
            message, hint, code = answer["refused"]
            raise UserError(f"on a node: {message}", hint=hint, exit_code=code)
        facts: dict[str, Any] = answer["told"]
        return facts

    def _surveyed(self, name: str, future: Future[Any]) -> dict[str, Environment]:
        """Return the CPU and the device of the surveyed node; nothing if the device is missing but not requested."""
        try:
            facts = self._answer(future, self._wait)
        except TimeoutError:
            ray.cancel(future.object_ref, force=True)  # type: ignore[attr-defined]
            return self._without(name, f"none was free for {self._wait:g} s", "ray:wait=SECONDS waits longer")
        devices = decode(json.dumps(facts["devices"]), dict[str, Environment])
        device: Environment | None = devices.get(gpu_kinds.visible(name))
        kind = gpu_kinds.of(name)
        if device is None:
            return self._without(name, "torch sees no CUDA device there", "these nodes need torch with CUDA")
        if kind and not gpu_kinds.is_of(kind, device.device_name or ""):
            return self._without(name, f"Ray gives a {device.device_name} for it", "name the accelerators as they are")
        return {"cpu": devices["cpu"], name: device}

    def _without(self, name: str, why: str, hint: str) -> dict[str, Environment]:
        """Return no device. Raises UserError (exit code 3) where one was requested."""
        if name != "cpu" and name not in self._kinds:
            return {}
        lacking = f"--gpus: '{gpu_kinds.of(name)}' cannot be had" if gpu_kinds.of(name) else "no node takes a task"
        raise UserError(f"{lacking}: {why}", hint=hint, exit_code=3)

    def _send(self, trial: Trial) -> tuple[Future[Any], Callable[[], object]]:
        needs = self._needs(trial.case.device)
        sent = self._run.options(**needs).remote(encode(trial), **self._on_node)
        return sent.future(), lambda: ray.cancel(sent, force=True)

    def _record(self, returned: ReturnedTrial) -> Record:
        """Write the log that a task returned, and return its record; or a record of why it returned none."""
        trial, error = returned.trial, returned.error
        if error is None and returned.answer is None:
            return lost(trial, "crashed", f"no node of the cluster could take it for {self._wait:g} s")
        if error is None:
            encoded, log = returned.answer
            self._keep_log(trial, log)
            record: Record = decode(encoded, Record)
            return record
        if isinstance(error, exceptions.RayTaskError):
            return lost(trial, "failed", _why(error))
        times = f", {returned.attempts} times" if returned.attempts > 1 else ""
        return lost(trial, "crashed", f"its node or its worker there was lost{times}: {_why(error)}")

    def _keep_log(self, trial: Trial, log: bytes) -> None:
        """Write the log if anything was printed; a full disk does not lose the record."""
        if self.logs is None:
            return
        path = self.logs / f"{store.log_name(trial.case, trial.round)}.log"
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            if log:
                path.parent.mkdir(exist_ok=True)
                with safe_files.anew(path) as file:
                    file.write(hide_bytes(log))


def _nodes() -> list[dict[str, float]]:
    """Return the total resources of each live node of the cluster."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _kinds_there() -> dict[str, str]:
    """Return Ray's names for the kinds of GPU in the cluster, by device name."""
    words = {word.removeprefix(ACCELERATOR) for node in _nodes() for word in node if word.startswith(ACCELERATOR)}
    return {gpu_kinds.named(word.lower()): word for word in sorted(words) if gpu_kinds.KIND.fullmatch(word.lower())}


def _placed(trial: Trial) -> Trial:
    """Make the data folder absolute: data is not sent, and must be at the same place on every node."""
    data = trial.data_directory
    return msgspec.structs.replace(trial, data_directory=str(Path(data).absolute())) if data else trial


def _why(error: BaseException) -> str:
    """Return what went wrong, in one line; for a task that raised, its own error."""
    cause = getattr(error, "cause", None) or error
    lines = hide(str(cause)).strip().splitlines() or ["no message"]  # after hiding, as a secret may have many lines
    return f"{type(cause).__name__}: {lines[0]}"
