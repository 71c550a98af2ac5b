"""Runs trials remotely, with bounded concurrency and retries of lost ones; or one at a time on each local device."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from profiler.core.case import Trial
from profiler.core.record import Record
from profiler.core.schedule import Pairing, pairing

DeviceRun = Callable[[Iterable[Trial]], Iterator[Record]]  # runs trials on its own device, in order

AHEAD = 256  # most trials of a device that are sent and not yet back: all would fill the sender's memory
ATTEMPTS = 3
LOOK_SECONDS = 2.0  # between checks for lost nodes, while nothing comes back


class SentTrial(NamedTuple):
    """A trial that was sent and has not come back."""

    trial: Trial
    attempt: int
    future: Future[Any]
    cancel: Callable[[], object]  # also if it is running


class ReturnedTrial(NamedTuple):
    """A trial that came back, with an answer or an error; with neither if no node could run it."""

    trial: Trial
    answer: Any = None
    error: BaseException | None = None
    attempts: int = 1


def run_remotely(
    trials: Iterable[Trial],
    *,
    send: Callable[[Trial], tuple[Future[Any], Callable[[], object]]],
    is_lost: Callable[[BaseException], bool],
    has_place: Callable[[str], bool],
    patience: float,
) -> Iterator[ReturnedTrial]:
    """Run each trial remotely and yield it as it comes back.

    A trial whose error `is_lost` is sent again, ATTEMPTS times in all. If no node could run a device's trials for
    `patience` seconds (`has_place`), they come back empty. Closing the iterator cancels the trials under way.
    """
    pool = _Pool(trials, send)
    try:
        while pool.fill():
            answered = pool.answered()
            if answered is None:
                yield from pool.without_place(has_place, patience)
            elif returned := pool.take_back(answered, is_lost):
                yield returned
    finally:
        pool.cancel()


class _Pool:
    """Trials to be sent, in a queue for each device so that none waits for another's; and trials under way."""

    def __init__(
        self, trials: Iterable[Trial], send: Callable[[Trial], tuple[Future[Any], Callable[[], object]]]
    ) -> None:
        self._send = send
        self._waiting: dict[str, deque[tuple[Trial, int]]] = {}
        for trial in trials:
            self._waiting.setdefault(trial.case.device, deque()).append((trial, 1))
        self._under_way: dict[Future[Any], SentTrial] = {}
        self._returned: SimpleQueue[Future[Any]] = SimpleQueue()
        self._gone: dict[str, float] = {}  # by device: since when no node can run its trials

    def fill(self) -> bool:
        """Send as many trials as AHEAD allows; return whether any is under way."""
        for device, waiting in self._waiting.items():
            room = AHEAD - sum(sent.trial.case.device == device for sent in self._under_way.values()) if waiting else 0
            for _ in range(min(room, len(waiting))):
                trial, attempt = waiting.popleft()
                future, cancel = self._send(trial)
                self._under_way[future] = SentTrial(trial, attempt, future, cancel)
                future.add_done_callback(self._returned.put)
        return bool(self._under_way)

    def answered(self) -> Future[Any] | None:
        """Return the next finished future; None if there is none for LOOK_SECONDS."""
        try:
            return self._returned.get(timeout=LOOK_SECONDS)  # waits in Python, where signals are handled
        except Empty:
            return None

    def take_back(self, future: Future[Any], is_lost: Callable[[BaseException], bool]) -> ReturnedTrial | None:
        """Return the trial that came back; None if it is sent again, or was canceled."""
        sent = self._under_way.pop(future, None)
        if sent is None:
            return None
        error = future.exception()
        if error and is_lost(error) and sent.attempt < ATTEMPTS:
            self._waiting[sent.trial.case.device].appendleft((sent.trial, sent.attempt + 1))
            return None
        answer = None if error else future.result()
        return ReturnedTrial(sent.trial, answer, error, sent.attempt)

    def without_place(self, has_place: Callable[[str], bool], patience: float) -> Iterator[ReturnedTrial]:
        """Cancel and yield all trials of a device that no node could run for `patience` seconds."""
        now = time.monotonic()
        devices = dict.fromkeys(sent.trial.case.device for sent in self._under_way.values())
        self._gone = {device: self._gone.get(device, now) for device in devices if not has_place(device)}
        for device in [device for device, since in self._gone.items() if now - since >= patience]:
            sent = [under_way for under_way in self._under_way.values() if under_way.trial.case.device == device]
            self.cancel(sent)
            left = [trial for trial, _ in self._waiting[device]]
            self._waiting[device].clear()
            yield from (ReturnedTrial(trial) for trial in (*(under_way.trial for under_way in sent), *left))

    def cancel(self, some: Iterable[SentTrial] | None = None) -> None:
        """Cancel the trials under way, or some of them; their later answers are dropped."""
        for sent in list(self._under_way.values() if some is None else some):
            del self._under_way[sent.future]
            sent.cancel()


def run_on_devices(
    device_runs: Sequence[DeviceRun], trials: Iterable[Trial], *, stop: Callable[[], None]
) -> Generator[Record, None, None]:
    """Run trials on several devices in parallel, one at a time on each, and yield the records as they come.

    Trials that are compared within a round stay on one device, whichever is free first. An error on a device is raised
    here too. It, and closing the iterator, calls `stop`, which must end the running trials on all devices.
    """
    pairings: dict[Pairing, list[Trial]] = {}
    for trial in trials:
        pairings.setdefault(pairing(trial), []).append(trial)
    waiting = deque(pairings.values())
    outcomes: SimpleQueue[Record | BaseException | None] = SimpleQueue()  # None: a device has nothing left to do
    threads = [Thread(target=_work, args=(device_run, waiting, outcomes)) for device_run in device_runs]
    for thread in threads:
        thread.start()
    num_working = len(threads)
    try:
        while num_working:
            outcome = outcomes.get()
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome is None:
                num_working -= 1
            else:
                yield outcome
    finally:
        waiting.clear()
        if num_working:
            stop()
        for thread in threads:
            thread.join()


def _work(
    device_run: DeviceRun, waiting: deque[list[Trial]], outcomes: SimpleQueue[Record | BaseException | None]
) -> None:
    try:
        while waiting:
            try:
                trials = waiting.popleft()
            except IndexError:  # another device took the last
                break
            for record in device_run(trials):
                outcomes.put(record)
    except BaseException as error:  # noqa: BLE001  it is raised where the records are read
        outcomes.put(error)
    else:
        outcomes.put(None)
