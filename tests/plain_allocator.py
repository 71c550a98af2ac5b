"""The caching allocator once more, by linear search through plain lists: what the quick one is compared with."""

from __future__ import annotations

MIB = 2**20


class Plain:
    """A pool is a list of segments, a segment a list of pieces [address, bytes, state] without gaps.

    States are "used", "free" and, at the end of an expandable segment, "unmapped". Addresses begin at 0 in each pool.
    """

    def __init__(self, *, expandable: bool) -> None:
        self.expandable = expandable
        self.pools = {True: [], False: []}  # by whether it is the small one
        if expandable:
            self.pools = {small: [[[0, 2**40 * 5, "unmapped"]]] for small in (True, False)}
        self.ends = {True: 0, False: 0}
        self.reserved = 0

    def allocate(self, nbytes: int) -> list:
        """The piece."""
        size = max(512, (nbytes + 511) // 512 * 512)
        small = size <= MIB
        if not self.fits(small, size):
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

    def free_bytes(self, *, small: bool) -> list[int]:
        """The size of every piece that is free."""
        return [piece[1] for segment in self.pools[small] for piece in segment if piece[2] == "free"]

    def fits(self, small: bool, size: int) -> list[tuple[list, int]]:
        return [
            (segment, place)
            for segment in self.pools[small]
            for place, piece in enumerate(segment)
            if piece[2] == "free" and piece[1] >= size
        ]

    def best(self, small: bool, size: int) -> tuple[list, int]:
        fitting = sorted(self.fits(small, size), key=lambda entry: (entry[0][entry[1]][1], entry[0][entry[1]][0]))
        chosen = fitting[0]
        for other in fitting[1:]:
            if self.can_become(*other) >= self.can_become(*chosen):
                break
            chosen = other
        return chosen

    @staticmethod
    def can_become(segment: list, place: int) -> int:
        beyond = segment[place + 1] if place + 1 < len(segment) else [0, 0, "used"]
        return segment[place][1] + (beyond[1] if beyond[2] == "unmapped" else 0)

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
        page = 2 * MIB if small else 20 * MIB
        (segment,) = self.pools[small]
        last = segment[-2] if len(segment) > 1 else [0, 0, "used"]
        unmapped = segment[-1]
        missing = size - (last[1] if last[2] == "free" else 0)
        pages = (missing + page - 1) // page * page
        segment.append([unmapped[0] + pages, unmapped[1] - pages, "unmapped"])
        unmapped[1], unmapped[2] = pages, "free"
        self.reserved += pages
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
