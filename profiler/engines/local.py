"""Runs trials on this machine, in processes forked from a server that imports torch; and the order of any engine.

This process never imports torch. Dependencies of trials come first, and some trials share a process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
from msgspec.structs import replace

from profiler import __version__
from profiler.analysis import progress
from profiler.analysis.progress import impossible
from profiler.core import by_key, catalogue, schedule
from profiler.core.case import Key, Trial, decode, encode
from profiler.core.device_choice import SEVERAL, visible
from profiler.core.errors import UserError
from profiler.core.gpu_specs import MOST_BYTES, absent, parse
from profiler.core.plan_file import strategy_label
from profiler.core.record import SCHEMA, Environment, Outcome, Record
from profiler.core.safe_files import hide_bytes
from profiler.core.schedule import pairing
from profiler.core.server_process import PRELOAD, PRELOAD_TO_REHEARSE, PRELOAD_TO_TRACE
from profiler.core.units import bytes_text
from profiler.engines import WORKER
from profiler.engines.child import LOG_BYTES, Child, Ended, Server
from profiler.rehearsal import device as rehearsed_device
from profiler.rehearsal.smoke import proven_libraries, readiness
from profiler.runs import store
from profiler.training import models

DeviceRun = Callable[[Iterable[Trial]], Iterator[Record]]  # runs trials on its own device, in order
RUN_TRIALS = f"{WORKER}:run_trials"
RUN_TOGETHER = f"{WORKER}:run_together"
SHARED = {  # by how a group of trials shares a child
    "predicted": RUN_TRIALS,
    "rehearsed": f"{WORKER}:run_rows",
    "timed": RUN_TOGETHER,
}
MOST_TIMED = 8  # strategies in a process: with more, steps are too far from the plain step to share its disturbances
Records = dict[Key, Record]
WAIT_SECONDS = 30.0  # a driver takes a second or two to free what a killed process held
POLL_SECONDS = 0.5
SHOWN_BYTES = 1024  # of a rejected result, in the log
SLACK_BYTES = 64 << 20  # free memory varies by this much on its own


def connect(rehearses: bool, measures: bool, entry: str = RUN_TRIALS) -> Local:
    """Return the engine of this machine, which runs one trial at a time."""
    return Local(rehearses=rehearses, measures=measures, entry=entry)


def connect_trainer(rehearses: bool, measures: bool) -> Local:
    """Return the engine of this machine, one trial at a time, with transformers.Trainer as the training loop."""
    return connect(rehearses, measures, entry="profiler.workflows.published.hf_trainer:run_trials")


def rehearsal() -> str:
    """Return in words whether this machine can rehearse GPUs: the state of the libraries for it, or why not."""
    try:
        return readiness()
    except UserError as error:
        return f"no: {error.message}" + (f"; {error.hint}" if error.hint else "")


def why_no_rehearsal(device: str) -> str | None:
    """Return why this machine cannot rehearse these GPUs; None if it can. The first call for a torch builds and tries.

    `device` is as cases have it, or several such words: `rehearse:t4,rehearse:h100`.
    """
    try:
        for word in device.split(","):
            rehearsed_device.variables(absent(word))
        proven_libraries()
    except UserError as error:
        return error.message
    return None


@dataclass(kw_only=True, eq=False)
class Local:
    """The engine of this machine: starts the server on entry, and ends it with all its children on exit.

    `stage_seconds` limits each stage of a trial; `logs` is the folder for the trials' capped output; `entry` is the
    function that runs a trial in its child; `visible` is the UUID of the only CUDA device that children see, None for
    all. Rehearsed trials have a server of their own, started with the first of them; if all are rehearsed
    (`rehearses`), there is no other. If nothing is measured (`measures` is false), the server starts sooner, without
    modules that only running a step needs.
    """

    stage_seconds: float = 600.0
    logs: Path | None = None
    entry: str = RUN_TRIALS
    visible: str | None = None
    rehearses: bool = False
    measures: bool = True
    devices: tuple[str, ...] = ()
    _device_engines: list[Local] = field(default_factory=list)  # by device, if there are several
    _is_stopped: bool = False
    _servers: dict[bool, Server] = field(default_factory=dict)  # by whether its children rehearse
    _free: dict[str, int] = field(default_factory=dict)  # by device: bytes that were free before anything was run
    _free_by_uuid: dict[str, int] = field(default_factory=dict)
    _ended_on: str | None = None  # the device of a child that was ended by force, and may still hold memory

    def __post_init__(self) -> None:
        self.at_work: Callable[[str], None] = lambda text: None

    def __enter__(self) -> Local:
        self._servers[self.rehearses] = self._server(rehearses=self.rehearses)
        return self

    def __exit__(self, *error: object) -> None:
        for engine in self._device_engines:
            engine.__exit__(*error)
        for server in self._servers.values():
            server.close()

    def stop(self) -> None:
        """End the running trial and begin no other; may be called from any thread."""
        for engine in (self, *self._device_engines):
            engine._is_stopped = True
            for server in engine._servers.values():
                server.hang_up()

    def survey(self) -> dict[str, Environment]:
        """Return every device that torch can use here. Raises UserError (exit code 3) if torch does not work."""
        answer = self.ask(f"{WORKER}:survey", "", failing="torch does not work here")
        devices: dict[str, Environment] = decode(json.dumps(answer["devices"]), dict[str, Environment])
        self._free = {name: free for name, free in answer["free"].items() if free is not None}
        uuids = {name: visible(device.device_uuid) for name, device in devices.items() if device.device_uuid}
        self._free_by_uuid = {uuid: self._free[name] for name, uuid in uuids.items() if name in self._free}
        return devices

    def ask(self, entry: str, text: str, *, failing: str, rehearses: bool = False) -> dict[str, Any]:
        """Call `entry` ("module:function") with `text` in a new process; return its answer, decoded from JSON.

        Raises UserError (exit code 3), which begins with `failing`, if the process ends without an answer.
        """
        rehearses = rehearses or self.rehearses
        with self._child(entry, text, entry.rpartition(":")[2], rehearses=rehearses) as child:
            child.on_stage = self.at_work
            ended = child.wait(self.stage_seconds)
        self._drop_dead_server(ended, rehearses=rehearses)
        if not child.lines:
            why = ended.describe().replace("start took", "it took")
            hint = f"--stage-limit {2 * ended.limit:g} gives it more time" if ended.timed_out else child.log.last_line()
            raise UserError(f"{failing}: {why}", hint=hint, exit_code=3)
        answer: dict[str, Any] = json.loads(child.lines[0])
        return answer

    def run(self, plan: Iterable[Trial], done: Iterable[Record] = ()) -> Iterator[Record]:
        """Yield one record for each trial that is owed; closing the iterator ends the running trial.

        Records are in order, unless several devices run trials. Raises UserError (exit code 3) if a child was killed
        and its memory on the device is not freed.
        """
        if self.devices:
            return in_waves(self._over_devices, plan, done, widely=True)
        return in_waves(self._one_by_one, plan, done)

    def _over_devices(self, trials: Iterable[Trial]) -> Iterator[Record]:
        if not self._device_engines:
            for uuid in self.devices:
                engine = Local(stage_seconds=self.stage_seconds, entry=self.entry, visible=uuid)
                engine._free = {SEVERAL: self._free_by_uuid[uuid]} if uuid in self._free_by_uuid else {}
                self._device_engines.append(engine.__enter__())
        for engine in self._device_engines:
            engine.logs, engine.at_work = self.logs, self.at_work
        return run_on_devices([engine._one_by_one for engine in self._device_engines], trials, stop=self.stop)

    def _one_by_one(self, trials: Iterable[Trial]) -> Iterator[Record]:
        """Run each trial in a fresh child, except groups of trials that share one."""
        refusals = progress.Refusals()
        for kind, several in grouped(trials):
            group = [trial for trial in several if not refusals.stop(trial.case)]
            entry = SHARED.get(kind) if len(group) > 1 and self.entry == RUN_TRIALS else None
            for record in self._sharing(entry, group) if entry else map(self._alone, group):
                if self._is_stopped:
                    return
                if progress.is_refusal(record):
                    refusals.add(record)
                yield record

    def _alone(self, trial: Trial) -> Record:
        """Run a trial in its own child; a rehearsed one that runs out of memory says what it takes with more of it."""
        (record,) = self._in_one_child(self.entry, [trial])
        if not trial.case.is_rehearsed or record.outcome != "out_of_memory":
            return record
        roomy = replace(trial.case, device=str(replace(parse(trial.case.device), bytes=MOST_BYTES)))
        (more,) = self._in_one_child(self.entry, [replace(trial, case=roomy)])
        whole = more.readings
        if whole.peak_bytes is None or whole.reserved_bytes is None:
            return record
        need = f"its peak would be {bytes_text(whole.peak_bytes)}, and {bytes_text(whole.reserved_bytes)} reserved"
        return replace(record, detail=f"{(record.detail or '').rstrip('.')}; {need}")

    def _sharing(self, entry: str, trials: list[Trial]) -> Iterator[Record]:
        """Run trials in one child; one that goes wrong there is run again by itself, and so are timed ones after it."""
        is_timed = entry == RUN_TOGETHER
        while trials:
            for record in (records := self._in_one_child(entry, trials)):
                if record.outcome not in (("ok",) if is_timed else ("ok", "skipped")):
                    records.close()
                    break
                trials = trials[1:]
                yield record
                if progress.is_refusal(record):  # as of a prediction, which is that of its whole baseline
                    return
            if is_timed and trials:  # the next waits for its memory
                self._ended_on = trials[0].case.torch_device
            num_alone = len(trials) if is_timed else 1
            alone, trials = trials[:num_alone], trials[num_alone:]
            for record in map(self._alone, alone):
                yield record
                if progress.is_refusal(record):
                    return

    def _in_one_child(self, entry: str, trials: list[Trial]) -> Generator[Record, None, None]:
        """Run trials in one child, each when its record is asked for; do not ask again once the child has ended."""
        self._await_memory()
        rehearses = trials[0].case.is_rehearsed
        requests = encode([replace(trial, limit_seconds=self.stage_seconds) for trial in trials]).decode()
        needs = [entry.partition(":")[0], *models.imports(trials[0].case.model.name)]  # no user's code
        log = store.log_name(trials[0].key)
        with self._child(entry, requests, log, needs=needs, rehearses=rehearses) as child:
            for trial in trials:
                if trial is not trials[0]:
                    child.go_on(self._log(store.log_name(trial.key)))
                words = f"{trial.case.model} {strategy_label(trial.case.label)} round {trial.round}"
                child.on_stage = lambda stage, words=words: self.at_work(f"{words}: {stage}")  # type: ignore[misc]
                ended = child.wait(self.stage_seconds, until_result=trial is not trials[-1])
                record = _record_of_end(child, trial, ended)
                self._drop_dead_server(ended, rehearses=rehearses)
                holds_memory = ended.status != 0 and not (rehearses or trial.case.is_predicted)
                self._ended_on = trial.case.torch_device if holds_memory else None
                yield record

    def _await_memory(self) -> None:
        """Wait for the memory of a killed process: the next trial would find too little."""
        device, self._ended_on = self._ended_on, None
        if device is None or device not in self._free:
            return
        until = time.monotonic() + WAIT_SECONDS
        failing = f"{device} does not report its free memory"
        while (
            held := self._free[device] - int(self.ask(f"{WORKER}:free_bytes", device, failing=failing)["free"])
        ) > SLACK_BYTES:
            if time.monotonic() >= until:
                raise UserError(
                    f"{device} still holds {bytes_text(held)}, {WAIT_SECONDS:g} s after a trial on it was ended",
                    hint="nvidia-smi shows who holds it; --resume goes on when it is free",
                    exit_code=3,
                )
            time.sleep(POLL_SECONDS)

    def _child(self, entry: str, text: str, log: str, *, needs: Sequence[str] = (), rehearses: bool = False) -> Child:
        assert self._servers, "enter the engine first"
        server = self._servers.get(rehearses)
        if server is None or not server.alive():
            if server:
                server.close()
            server = self._servers[rehearses] = self._server(rehearses=rehearses)
        server.await_ready()
        return Child(server.control, entry, text, needs=needs, log=self._log(log))

    def _server(self, *, rehearses: bool) -> Server:
        preload = PRELOAD_TO_REHEARSE if rehearses else PRELOAD if self.measures else PRELOAD_TO_TRACE
        return Server(self.visible, rehearses=rehearses, preload=preload)

    def _log(self, name: str) -> Path | None:
        return self.logs / f"{name}.log" if self.logs else None

    def _drop_dead_server(self, ended: Ended, *, rehearses: bool) -> None:
        """Close a server that died, so that no other trial goes to it."""
        if ended.status is None and not ended.timed_out and not ended.refused:
            self._servers[rehearses].close()  # its process may end later, but gets no more trials


def _record_of_end(child: Child, trial: Trial, ended: Ended) -> Record:
    """Return the record that a child sent, if that can be one of this trial; else one of how it ended."""
    outcome: Outcome = "failed"
    why = f"ended in {ended.stage} without a result (exit code {ended.status})"
    if ended.timed_out or ended.status is None or ended.status < 0:
        outcome, why = "timed_out" if ended.timed_out else "crashed", ended.describe()
    if not child.lines and (outcome != "failed" or not child.torn):
        return lost(trial, outcome, why)
    sent = [*child.lines, *([child.torn] if child.torn else ())]
    try:
        if len(sent) != 1:
            raise ValueError(f"it sent {len(sent)} lines")
        record: Record = decode(sent[0], Record)
        if (record.schema, record.key) != (SCHEMA, trial.key):
            raise ValueError("it is of another trial")
        for wrong in impossible(record, trial.passes):
            raise ValueError(wrong)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        shown = hide_bytes(b"".join(sent)[:LOG_BYTES])[:SHOWN_BYTES]  # hidden before `!r`
        child.log.write(f"\n[gcprof: no result: {shown!r}]\n".encode())
        return lost(trial, "failed", f"bad result: {error}")
    record.keep_line(sent[0])
    return record


def lost(trial: Trial, outcome: Outcome, detail: str) -> Record:
    """Return a record without readings."""
    system = f"{os.uname().sysname} {os.uname().machine}"
    environment = Environment(gcprof=__version__, python=sys.version.split()[0], system=system)
    return Record(case=trial.case, round=trial.round, outcome=outcome, detail=detail, environment=environment)


def run_on_devices(
    device_runs: Sequence[DeviceRun], trials: Iterable[Trial], *, stop: Callable[[], None]
) -> Generator[Record, None, None]:
    """Run trials on several devices in parallel, one at a time on each, and yield the records as they come.

    Trials that are compared within a round stay on one device, whichever is free first. An error on a device is raised
    here too. It, and closing the iterator, calls `stop`, which must end the running trials on all devices.
    """
    pairings = by_key((pairing(trial), trial) for trial in trials)
    waiting = iter(tuple(pairings.values()))
    outcomes: SimpleQueue[Record | Future[None]] = SimpleQueue()  # a future: a device has nothing left to do

    def work(device_run: DeviceRun) -> None:
        for group in waiting:  # each group goes to one of the threads
            for record in device_run(group):
                outcomes.put(record)

    with ThreadPoolExecutor(len(device_runs)) as pool:
        working = {pool.submit(work, device_run) for device_run in device_runs}
        for future in tuple(working):
            future.add_done_callback(outcomes.put)
        try:
            while working:
                outcome = outcomes.get()
                if isinstance(outcome, Future):
                    outcome.result()
                    working.remove(outcome)
                else:
                    yield outcome
        finally:
            tuple(waiting)  # nothing more is begun
            if working:
                stop()


# the order in which any engine runs a plan


def in_waves(
    run: Callable[[list[Trial]], Iterator[Record]],
    plan: Iterable[Trial],
    done: Iterable[Record] = (),
    *,
    widely: bool = False,
) -> Iterator[Record]:
    """Run the trials that `done` does not hold yet, and yield each record as it comes.

    `run` gets one wave at a time, whose trials do not depend on each other. A round's baselines come before the other
    trials of the first round, which are verified against them or predicted with their readings, and before trials that
    are run only if a baseline finds something. A case whose first round is not ok has no further rounds. The waves
    follow the plan; `widely` makes as few as possible, for an engine that runs many trials at once.
    """
    records = {record.key: record for record in done}
    waves = groupby(sorted(plan, key=_wave), key=_wave) if widely else groupby(plan, key=_close_wave)
    for _, wave in waves:
        for record in run(informed(progress.owed(wave, records.values()), records)):
            records[record.key] = record
            yield record


def grouped(trials: Iterable[Trial]) -> Iterator[tuple[str, list[Trial]]]:
    """Yield groups of adjacent trials that may share a process, with how: "" for one alone, or else by one word.

    Predictions ("predicted") and rehearsals ("rehearsed") of one baseline share a process, unless they run the user's
    code or are of several ranks. So do measured strategies of one baseline and round ("timed") if only their time is
    read: on one model, they share the steps without a strategy.
    """
    for (kind, _), several in groupby(trials, key=_sharing):
        group = list(several)
        most = MOST_TIMED if kind == "timed" else len(group)
        for at in range(0, len(group), most):
            yield kind, group[at : at + most]


def _sharing(trial: Trial) -> tuple[str, object]:
    """Return how a trial shares its process, and a key that all trials in that process have in common."""
    case = trial.case
    if (case.is_predicted or case.is_rehearsed) and not (
        case.ranks or catalogue.is_code(case.model.name, models.TABLE)
    ):
        return "predicted" if case.is_predicted else "rehearsed", case.baseline
    if schedule.is_time_alone(trial):
        return "timed", (case.baseline, trial.round)
    return "", trial


def informed(trials: Iterable[Trial], records: Records) -> list[Trial]:
    """Add to trials what is known of their baselines: digests to verify against, whether they ran, the calibration."""
    trials = list(trials)
    is_predicted = any(trial.case.is_predicted for trial in trials)
    calibrations = progress.calibrations(records.values()) if is_predicted else {}
    known: list[Trial] = []
    for trial in trials:
        baseline, digests = records.get((trial.case.baseline, 1)), trial.digests
        is_ok = baseline is not None and baseline.outcome == "ok"
        if not digests and is_ok and baseline and baseline.equality:
            digests = baseline.equality.digests
        calibration = calibrations.get(trial.case.baseline.twin) if trial.case.is_predicted else None
        is_paired = trial.is_paired and (baseline is None or is_ok)  # the plain step can be run, as far as is known
        calibration = trial.calibration or calibration
        known.append(replace(trial, digests=digests, is_paired=is_paired, calibration=calibration))
    return known


def _wave(trial: Trial) -> tuple[bool, bool, bool]:
    """Return the key of a trial's wave; waves sort so that what others need comes first."""
    is_later = trial.round > 1  # and needs to know that the first round was ok
    waits_for_baseline = (not is_later and trial.case != trial.case.baseline) or bool(trial.if_own)
    return is_later, trial.case.is_predicted, waits_for_baseline


def _close_wave(trial: Trial) -> tuple[object, ...]:
    """Return the key of a wave that keeps predictions of one baseline together, so that they can share a process."""
    is_later, is_predicted, waits = _wave(trial)
    if is_predicted or trial.case.is_rehearsed:
        return is_later, is_predicted, trial.case.baseline, bool(trial.if_own)
    return is_later, False, waits
