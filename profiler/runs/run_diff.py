"""Differences from when a run began: in the user's files, versions and device."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from profiler.core import catalogue
from profiler.core.case import Case, Choice
from profiler.core.errors import UserError
from profiler.core.record import HARDWARE, SOFTWARE, Environment
from profiler.runs.store import Manifest

DIGITS = 16  # of a SHA-256: enough to notice a changed file


def changes(before: Manifest, *, environment: Environment, sources: Mapping[str, str]) -> tuple[str, ...]:
    """Return every difference of files, versions and device, as `name before -> now`."""
    return (*_of_files(before.sources, sources), *_of_environments(before.environment, environment))


def _of_files(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yield which files differ, without digests: their names are those of a folder that may come from anyone."""
    for name, digest in before.items():
        if digest != now.get(name):
            yield f"{name} was another file" if name in now else f"{name} is not there"
    yield from (f"{name} was not recorded" for name in now if name not in before)


def _of_environments(before: Environment, now: Environment) -> Iterator[str]:
    for name in (*SOFTWARE, *HARDWARE):
        old, new = getattr(before, name), getattr(now, name)
        if old is not None and old != new:
            yield f"{name} {old} -> {new}"


def code_digests(cases: Iterable[Case]) -> dict[str, str]:
    """Return the digest of each file of the user's own that the cases name (models' code, plans), by that name.

    The cases must be of words that the user typed. Missing files are left out. What these files import is not looked
    at.
    """
    return {name: digest(path.read_bytes()) for name, path in code_files(cases).items() if path and path.is_file()}


def missing_code(cases: Iterable[Case]) -> tuple[str, ...]:
    """Return the names of the user's files that the cases name and that are missing."""
    return tuple(name for name, path in code_files(cases).items() if not (path and path.is_file()))


def digest(text: bytes) -> str:
    """Return the digest of a file with this text, also of one that is still to be written."""
    return hashlib.sha256(text).hexdigest()[:DIGITS]


def code_files(cases: Iterable[Case]) -> dict[str, Path | None]:
    """Return the path of each file of code or plans that the cases name, by that name; None if it is not found."""
    return dict(place for case in cases for place in _code_places(case.model, case.strategy))


def _code_places(model: Choice, strategy: Choice) -> Iterator[tuple[str, Path | None]]:
    name, file = model.name, strategy.options.get("file")
    if catalogue.CODE.fullmatch(name):
        try:
            yield name.rpartition(":")[0], catalogue.place(name)
        except UserError:
            yield name.rpartition(":")[0], None
    if strategy.name == "plan" and file:
        yield file, Path(file)
