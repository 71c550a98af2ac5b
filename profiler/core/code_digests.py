"""The files that a plan names, as digests: what of a run is written down elsewhere, and may change there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from profiler.core import catalogue
from profiler.core.case import Case, Choice
from profiler.core.errors import UserError

DIGITS = 16  # of a SHA-256: enough to see that a file is another one


def digests(cases: Iterable[Case]) -> dict[str, str]:
    """Every file of a user's own that the cases name, models' code and plans, by its name there; one that cannot be
    read is left out. What these files import in turn is not looked at.
    """
    return {name: digest(path.read_bytes()) for name, path in _files(cases).items() if path and path.is_file()}


def missing(cases: Iterable[Case]) -> tuple[str, ...]:
    """The names of those that are not there."""
    return tuple(name for name, path in _files(cases).items() if not (path and path.is_file()))


def digest(text: bytes) -> str:
    """That of a file of this text, also of one that is still to be written."""
    return hashlib.sha256(text).hexdigest()[:DIGITS]


def _files(cases: Iterable[Case]) -> dict[str, Path | None]:
    choices = dict.fromkeys(choice for case in cases for choice in (case.model, case.strategy))
    return dict(place for choice in choices for place in _places(choice))


def _places(choice: Choice) -> Iterator[tuple[str, Path | None]]:
    name, file = choice.name, choice.options.get("file")
    if catalogue.CODE.fullmatch(name):
        try:
            yield name.rpartition(":")[0], catalogue.place(name)
        except UserError:
            yield name.rpartition(":")[0], None
    if file:
        yield file, Path(file)
