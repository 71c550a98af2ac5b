"""The caching allocator once more, by linear search through plain lists: what the quick one is compared with."""

from __future__ import annotations

from collections.abc import Iterator

MIB = 2**20


class Plain:
    """A pool is a list of segments, a segment a list of pieces [address, bytes, state] without gaps.

    States are "used", "free" and, of an expandable segment only, "unmapped". Addresses begin at 0 in each pool.
    """

    def __init__(self, *, expandable: bool, capacity: int | None) -> None:
        self.expandable, self.capacity = expandable, capacity
        self.pools = {True: [], False: []}  # by whether it is the small one
        if expandable:
            self.pools = {small: [[[0, 2**40 * 5, "unmapped"]]] for small in (True, False)}
        self.ends = {True: 0, False: 0}
        self.reserved = 0

    def allocate(self, nbytes: int) -> list | None:
        """The piece; None where it does not fit."""
        size = max(512, (nbytes + 511) // 512 * 512)
        small = size <= MIB
        if not self.fits(small, size):
            if not self.affordable(small, size):
                self.release()
            if not self.affordable(small, size):
                return None
            self.get_more(small, size)
        segment, place = self.best(small, size)
        piece = segment[place]
        rest = piece[1] - size
        if (rest > 0) if small or self.expandable else (rest > MIB):
            segment.insert(place + 1, [piece[0] + size, rest, "free"])
            piece[1] = size
        piece[2] = "used"
        return piece

    def free(self, small: bool, piece: list) -> None:
        piece[2] = "free"
        self.coalesce(small)

    def release(self) -> None:
        for small in (True, False):
            if self.expandable:
                self.unmap(small)
            else:
                whole = [s for s in self.pools[small] if len(s) == 1 and s[0][2] == "free"]
                self.pools[small] = [s for s in self.pools[small] if s not in whole]
                self.reserved -= sum(s[0][1] for s in whole)

    def fits(self, small: bool, size: int) -> list[tuple[list, int]]:
        return [
            (segment, place)
            for segment in self.pools[small]
            for place, piece in enumerate(segment)
            if piece[2] == "free" and piece[1] >= size
        ]

    def best(self, small: bool, size: int) -> tuple[list, int]:
        found = sorted(self.fits(small, size), key=lambda one: (one[0][one[1]][1], one[0][one[1]][0]))
        chosen = found[0]
        for other in found[1:]:
            if self.can_become(*other) >= self.can_become(*chosen):
                break
            chosen = other
        return chosen

    @staticmethod
    def can_become(segment: list, place: int) -> int:
        beyond = segment[place + 1] if place + 1 < len(segment) else [0, 0, "used"]
        return segment[place][1] + (beyond[1] if beyond[2] == "unmapped" else 0)

    def affordable(self, small: bool, size: int) -> bool:
        more = sum(pages for _, pages in self.holes(small, size)) if self.expandable else self.segment(small, size)
        return bool(self.fits(small, size)) or self.capacity is None or self.reserved + more <= self.capacity

    @staticmethod
    def segment(small: bool, size: int) -> int:
        if small:
            return 2 * MIB
        return 20 * MIB if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * (2 * MIB)

    def get_more(self, small: bool, size: int) -> None:
        if not self.expandable:
            nbytes = self.segment(small, size)
            self.pools[small].append([[self.ends[small], nbytes, "free"]])
            self.ends[small] += nbytes
            self.reserved += nbytes
            return
        (segment,) = self.pools[small]
        for hole, pages in self.holes(small, size):
            if pages < hole[1]:
                segment.insert(segment.index(hole) + 1, [hole[0] + pages, hole[1] - pages, "unmapped"])
            hole[1], hole[2] = pages, "free"
            self.reserved += pages
        self.coalesce(small)

    def holes(self, small: bool, size: int) -> list[tuple[list, int]]:
        """What to map of the first pieces in a row, not used, that hold the size; one of the first two is a hole."""
        page = 2 * MIB if small else 20 * MIB
        (segment,) = self.pools[small]
        for run in self.runs(segment):
            firsts = [place for place, piece in enumerate(run) if piece[2] == "unmapped"]
            for first in firsts:
                tail = run[max(0, first - 1) :]
                if sum(piece[1] for piece in tail) >= size:
                    wanted, found = size, []
                    for piece in tail:
                        if piece[2] == "unmapped" and wanted > 0:
                            found.append((piece, (min(wanted, piece[1]) + page - 1) // page * page))
                        wanted -= piece[1]
                    return found
        raise AssertionError

    @staticmethod
    def runs(segment: list) -> Iterator[list]:
        run: list = []
        for piece in [*segment, [0, 0, "used"]]:
            if piece[2] == "used":
                if run:
                    yield run
                run = []
            else:
                run.append(piece)

    def unmap(self, small: bool) -> None:
        page = 2 * MIB if small else 20 * MIB
        (segment,) = self.pools[small]
        pieces = []
        for piece in segment:
            address, nbytes, state = piece
            begin, end = (address + page - 1) // page * page, (address + nbytes) // page * page
            if state == "free" and begin < end:
                parts = [[address, begin - address, "free"], [begin, end - begin, "unmapped"]]
                parts.append([end, address + nbytes - end, "free"])
                pieces += [part for part in parts if part[1]]
                self.reserved -= end - begin
            else:
                pieces.append(piece)
        segment[:] = pieces
        self.coalesce(small)

    def coalesce(self, small: bool) -> None:
        for segment in self.pools[small]:
            joined: list = []
            for piece in segment:
                if joined and piece[2] != "used" and joined[-1][2] == piece[2]:
                    joined[-1][1] += piece[1]
                else:
                    joined.append(piece)
            segment[:] = joined
