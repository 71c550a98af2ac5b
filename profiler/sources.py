"""The files that a plan names, as digests: what of a run is written down elsewhere, and may change there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from profiler import catalogue
from profiler.case import Case, Choice
from profiler.errors import UserError

DIGITS = 16  # of a SHA-256: enough to see that a file is another one


def digests(cases: Iterable[Case]) -> dict[str, str]:
    """Every file of a user's own that the cases name, models' code and plans, by its name there; one that cannot be
    read is left out. What these files import in turn is not looked at.
    """
    choices = dict.fromkeys(choice for case in cases for choice in (case.model, case.strategy))
    named = dict(place for choice in choices for place in _places(choice))
    return {name: hashlib.sha256(path.read_bytes()).hexdigest()[:DIGITS] for name, path in named.items()}


def _places(choice: Choice) -> Iterator[tuple[str, Path]]:
    name, file = choice.name, choice.options.get("file")
    if catalogue.CODE.fullmatch(name):
        try:
            path = catalogue.place(name)
        except UserError:
            return
        if path.is_file():
            yield name.rpartition(":")[0], path
    if file and Path(file).is_file():
        yield file, Path(file)
