"""Trials over several devices at once, one at a time on each. Knows nothing of processes or of what a device is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from queue import SimpleQueue
from threading import Thread

from profiler.core.case import Trial
from profiler.core.record import Record
from profiler.core.schedule import Pairing, pairing

Lane = Callable[[Iterable[Trial]], Iterator[Record]]  # runs trials on its own device, in order


def over(lanes: Sequence[Lane], trials: Iterable[Trial], *, stop: Callable[[], None]) -> Generator[Record, None, None]:
    """One record for each trial, as they come.

    What is compared within a round stays on one device, whichever is free first. Closing the iterator, and whatever a
    lane raises, which is raised here too, calls `stop`, which must end what is at work in all lanes.
    """
    pairings: dict[Pairing, list[Trial]] = {}
    for trial in trials:
        pairings.setdefault(pairing(trial), []).append(trial)
    waiting = deque(pairings.values())
    said: SimpleQueue[Record | BaseException | None] = SimpleQueue()  # None: a lane has nothing left to do
    threads = [Thread(target=_work, args=(lane, waiting, said)) for lane in lanes]
    for thread in threads:
        thread.start()
    try:
        left = len(threads)
        while left:
            found = said.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                left -= 1
            else:
                yield found
    finally:
        waiting.clear()
        if any(thread.is_alive() for thread in threads):
            stop()
        for thread in threads:
            thread.join()


def _work(lane: Lane, waiting: deque[list[Trial]], said: SimpleQueue[Record | BaseException | None]) -> None:
    try:
        while waiting:
            try:
                trials = waiting.popleft()
            except IndexError:  # another lane took the last
                break
            for record in lane(trials):
                said.put(record)
    except BaseException as error:  # noqa: BLE001  it is raised where the records are read
        said.put(error)
    else:
        said.put(None)
