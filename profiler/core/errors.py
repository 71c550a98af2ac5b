"""Errors that the user or the machine causes, to be shown as one line."""

from __future__ import annotations

import re
from collections.abc import Iterable

MOST_MEANT = 3  # words that a hint names


class UserError(Exception):
    """A request that cannot be carried out: what is wrong with which value, and what to try.

    Caught once, in the command line, which prints one line and ends with `exit_code`
    (2 usage, 3 no such device, 4 unreadable results, 74 cannot write).
    """

    def __init__(self, message: str, *, hint: str | None = None, exit_code: int = 2) -> None:
        super().__init__(message)
        if hint is not None:
            self.add_note(f"hint: {hint}")  # Python shows it below the message, where nobody catches this
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


class Unsupported(Exception):
    """A strategy cannot be applied to this model: the row is there, skipped, with this reason."""


class NotOnce(Unsupported):
    """Blocks do not run once each, in order."""


class Invalid(Exception):
    """A step that trains nothing: the row is there, invalid, with this reason and without numbers."""


class Exited(Exception):
    """The user's code called sys.exit, which must not end what measures it."""


def nearest(word: str, words: Iterable[str], *, before: str = "", after: str = "") -> str | None:
    """A hint that names the known words nearest to this one, as they are to be typed; None where none is near.

    `before` and `after` are what is typed around the word: an option before it, a value after it.
    """
    meant = " or ".join(f"'{before}{name}{after}'" for name in similar(word, words))
    return f"did you mean {meant}?" if meant else None


def nearest_or_all(word: str, words: Iterable[str], *, before: str = "", after: str = "") -> str:
    """A hint that names the known words nearest to this one as `nearest` does, or all of them where none is near."""
    names = list(words)
    return nearest(word, names, before=before, after=after) or f"choose from {', '.join(names) or 'none'}"


def similar(word: str, words: Iterable[str]) -> list[str]:
    """The known words that one may have meant, at most three: those that begin so, else the one of the fewest slips.

    A word may begin at any part of a name: `2080ti` begins `rtx-2080-ti`. A slip is a letter too many, too few, another
    or in its neighbour's place; a third of the longer word may be slips, so that nothing is named that is not near.
    """
    names = list(dict.fromkeys(words))
    typed = _letters(word)
    begun = [name for name in names if _begins(typed, name)]
    if begun:
        whole = [name for name in begun if _letters(name) == typed]
        return whole[:1] or begun[:MOST_MEANT]
    slips = {name: _slips(typed, _letters(name)) for name in names}
    near = [name for name in names if slips[name] <= max(len(typed), len(_letters(name))) // 3]
    return [min(near, key=lambda name: slips[name])] if near else []


def _letters(word: str) -> str:
    """A word without what is easily left out of it."""
    return re.sub(r"[-_\s]", "", word.lower())


def _begins(typed: str, name: str) -> bool:
    """Whether what was typed begins the name, or one of its parts where that says enough."""
    if len(typed) < 2:
        return False
    if _letters(name).startswith(typed):
        return True
    parts = [match.end() for match in re.finditer(r"[-_:/.]", name)]
    return len(typed) >= 4 and any(_letters(name[start:]).startswith(typed) for start in parts)


def _slips(word: str, name: str) -> int:
    """Letters to add, drop, change or swap with a neighbour until one word is the other."""
    if abs(len(word) - len(name)) > max(len(word), len(name)) // 3:
        return max(len(word), len(name))  # more than are forgiven
    before: list[int] = []
    row = list(range(len(name) + 1))
    for number, letter in enumerate(word, start=1):
        earlier, before, row = before, row, [number]
        for place, other in enumerate(name, start=1):
            cost = min(before[place] + 1, row[-1] + 1, before[place - 1] + (letter != other))
            if number > 1 and place > 1 and letter == name[place - 2] and word[number - 2] == other:
                cost = min(cost, earlier[place - 2] + 1)
            row.append(cost)
    return row[-1]
