"""Reads the lifetimes and sizes of a traced step's blocks from the history that CUDA's allocator kept of it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from profiler.core.allocator_history import GIVEN, GRANULE, TAKEN_BACK, line
from profiler.predicting.device_tracer import DeviceTracer

MIB = 1 << 20  # only a request above this may get a block with an unsplit rest, which is at most this large


class BlockLife:
    """The lifetime of one block; `born` and `died` are numbers of operators, as in an Allocation."""

    __slots__ = ("address", "born", "died", "is_within", "line", "nbytes", "siblings", "unsplit")

    def __init__(self, address: int, nbytes: int, born: int, line: str = "", unsplit: int = 0) -> None:
        self.address, self.nbytes, self.born, self.line = address, nbytes, born, line
        self.unsplit = unsplit  # beside `nbytes`: the part that was not requested
        self.died: int | None = None  # None if it outlives the step
        self.is_within = False  # whether its operator gave it back before it ended
        self.siblings: Sequence[BlockLife] = ()  # with which it shares what is known of their unsplit rests


class BlockLives:
    """All blocks of a step, in the order in which they were given, those in use before it first.

    The history has the requests; the allocator's count of bytes around each operator tells what else their blocks took.
    """

    def __init__(self, tracer: DeviceTracer) -> None:
        self._ran, self._bounds = tracer.ran, deque(tracer.bounds)
        self.lives = [
            BlockLife(block.address, asked, 0, block.line, block.nbytes - asked)
            for block in tracer.before
            for asked in (_rounded(block.requested),)
        ]
        self.made: list[list[BlockLife]] = [[] for _ in range(len(self._ran) + 2)]  # by operator
        self.asked_peaks = [0] * (len(self._ran) + 1)  # by operator: the most bytes in it, without unsplit rests
        self._here = {life.address: life for life in self.lives}
        self._at: dict[int, list[BlockLife]] = defaultdict(list)
        for life in self.lives:
            self._at[life.address].append(life)
        self._asked = sum(life.nbytes for life in self.lives)
        self._held = self._asked + sum(life.unsplit for life in self.lives)
        self._number, self._is_ended = 0, True  # of the operator that runs, or ran last
        self._given: list[BlockLife] = []  # since the allocator's count was last compared
        self._taken: list[BlockLife] = []
        for number, event in enumerate(event for event in tracer.events if event["action"] in (GIVEN, TAKEN_BACK)):
            self._go_to(number, event)
            self._give(event) if event["action"] == GIVEN else self._take(event)
        self._pass(len(self._ran), is_ended=True)

    def at(self, address: int, number: int) -> BlockLife | None:
        """Return the block that was in use at an address after an operator."""
        lives = (life for life in reversed(self._at.get(address, ())) if life.born <= number)
        return next((life for life in lives if life.died is None or life.died >= number), None)

    def _go_to(self, number: int, event: dict[str, Any]) -> None:
        """Go on to the operator that ran, or had run last, when this many events had been recorded."""
        bound = None
        while self._bounds and self._bounds[0][0] <= number:
            bound = self._bounds.popleft()
        if bound:
            self._pass(bound[1], is_ended=bound[2])
        is_next_unseen = self._number < len(self._ran) and self._ran[self._number].start_bytes is None
        if self._is_ended and is_next_unseen and event["action"] == GIVEN:
            self._pass(self._number + 1, is_ended=False)

    def _pass(self, number: int, *, is_ended: bool) -> None:
        if (number, is_ended) <= (self._number, self._is_ended):
            return
        if not self._is_ended:
            self._compare(self._ran[self._number - 1].end_bytes)
        for passed in range(self._number + 1, number + 1):
            self.asked_peaks[passed] = self._asked
        start = self._ran[number - 1].start_bytes
        if start is not None and number > self._number:
            self._compare(start)
        if is_ended and number > self._number:
            self._compare(self._ran[number - 1].end_bytes)
        self._number, self._is_ended = number, is_ended

    def _give(self, event: dict[str, Any]) -> None:
        life = BlockLife(event["addr"], _rounded(event["size"]), self._number, line(event.get("frames", ())))
        self.lives.append(life)
        self.made[life.born].append(life)
        self._here[life.address] = life
        self._at[life.address].append(life)
        self._given.append(life)
        self._asked, self._held = self._asked + life.nbytes, self._held + life.nbytes
        self.asked_peaks[self._number] = max(self.asked_peaks[self._number], self._asked)

    def _take(self, event: dict[str, Any]) -> None:
        life = self._here.pop(event["addr"], None)
        if life is None:
            return
        life.died, life.is_within = self._number, not self._is_ended and life.born == self._number
        self._asked, self._held = self._asked - life.nbytes, self._held - life.nbytes - life.unsplit
        self._taken.append(life)

    def _compare(self, counted: int) -> None:
        """Give what the allocator counts beyond the requests to the blocks that can have an unsplit rest.

        Where an operator was given several, which of them has it shows when the first is taken back.
        """
        given = [life for life in self._given if life.died is None]
        large = [life for life in given if life.nbytes > MIB] or given
        for life in large if counted > self._held else ():
            rest = counted - self._held if life is large[-1] else min(MIB, counted - self._held)
            life.unsplit, life.siblings, self._held = rest, large, self._held + rest
        for gone in self._taken:
            for life in gone.siblings if counted != self._held else ():
                if life.died is None:
                    moved = max(-life.unsplit, min(counted - self._held, gone.unsplit))
                    life.unsplit, gone.unsplit = life.unsplit + moved, gone.unsplit - moved
                    self._held += moved
        self._given, self._taken = [], []


def _rounded(nbytes: int) -> int:
    return -(-nbytes // GRANULE) * GRANULE
