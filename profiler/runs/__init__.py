"""A run folder: written, read, found by name, merged, validated; the reference runs that come with gcprof."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from profiler.core import safe_files
from profiler.core.errors import UserError, nearest, shipped

RESULTS = Path("results")  # where run folders are made by default
TAGS = "tags.json"  # in a run folder, but not part of what was measured
TAG = re.compile(r"\w[\w.+-]{0,39}")
PART = re.compile(r"\d{8}T[\w.-]*|[0-9a-f]{4,6}")  # of a run's name, which no model is called
LISTED = "`gcprof runs list` shows the runs"
REFERENCE = "ref:"


def run_folder(word: str) -> Path:
    """Return the run folder of a path, a name below the results, `last` or `ref:NAME`. Raises UserError.

    Part of a name is enough if no other run has it, and so is a tag that only one run has.
    """
    if word.startswith(REFERENCE):
        return reference(word)
    if os.path.isfile(Path(word) / "manifest.json"):  # Path.is_file raises for a name that is too long
        return Path(word)
    if word != "last" and os.path.exists(word):
        raise UserError(f"'{word}' has no manifest.json: it is not a run folder", hint=LISTED, exit_code=4)
    folders = runs(RESULTS)
    if not folders and word == "last":
        raise UserError(f"there are no runs below '{RESULTS}'", hint="measure something first: gcprof run")
    if word == "last":
        return max(folders, key=lambda path: ((path / "manifest.json").stat().st_mtime_ns, path.name))
    names = [path.name for path in folders]
    if word in names:
        return RESULTS / word
    tagged = [path for path in folders if word in read_tags(path)]
    named = [path for path in folders if word and word in path.name]
    meant = named if len(named) == 1 else tagged or named
    if len(meant) == 1:
        return meant[0]
    if meant:
        message = f"'{word}' is {'a tag' if tagged else 'part of the names'} of {len(meant)} runs"
        raise UserError(message, hint=f"the newest is {meant[-1].name}; {LISTED}", exit_code=4)
    raise UserError(f"'{word}' is not a run", hint=nearest(word, names) or LISTED, exit_code=4)


def is_run(word: str) -> bool:
    """Whether a word that may also be a model's is a run: its folder, its name, or the end or beginning of that."""
    if word.startswith(REFERENCE) or any(
        os.path.isfile(place / "manifest.json") for place in (Path(word), RESULTS / word)
    ):
        return True
    names = [path.name for path in runs(RESULTS)]
    return (word == "last" and bool(names)) or (
        PART.fullmatch(word) is not None and any(word in name for name in names)
    )


def own_folder(word: str) -> Path:
    """Return the same for a run of the user's own. Raises UserError for a reference run."""
    if word.startswith(REFERENCE):
        raise UserError(f"'{word}' ships with gcprof and is read-only", hint=LISTED)
    return run_folder(word)


def runs(folder: Path) -> list[Path]:
    """Return the run folders below a folder, oldest first."""
    folders = [path.parent for path in folder.glob("*/manifest.json") if not path.parent.name.startswith(".")]
    return sorted(folders, key=lambda path: path.name)


def reference_folder() -> Path:
    """The folder of the reference runs."""
    return shipped("results", "reference")


def reference_names() -> tuple[str, ...]:
    """Return every reference run as `DEVICE/MODEL`."""
    folder = reference_folder()
    return tuple(sorted(path.parent.relative_to(folder).as_posix() for path in folder.glob("*/*/manifest.json")))


def reference(word: str) -> Path:
    """Return the run folder of `ref:DEVICE/MODEL`. Raises UserError (exit code 4) if there is none."""
    name = word.removeprefix(REFERENCE)
    if name not in reference_names():
        hint = nearest(name, reference_names(), before=REFERENCE) or "`gcprof runs list --ref` shows them"
        raise UserError(f"no reference run is called '{name}'", hint=hint, exit_code=4)
    return reference_folder() / name


def read_tags(folder: Path) -> tuple[str, ...]:
    """Return the tags of a run, in the order they were given; none if the file holds something else."""
    try:
        words = msgspec.json.decode(safe_files.read(folder / TAGS), type=list[str])
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return ()
    return tuple(dict.fromkeys(word for word in words if TAG.fullmatch(word)))


def change_tags(folder: Path, words: Iterable[str], *, remove: bool = False) -> tuple[str, ...]:
    """Add or remove tags; return those that the run has then. Raises UserError for what is no tag, or not one of it."""
    before, words = read_tags(folder), list(words)
    for word in words:
        if not TAG.fullmatch(word):
            raise UserError(f"'{word}' cannot be a tag", hint="letters, digits and _ . + -, at most 40")
        if remove and word not in before:
            raise UserError(f"this run has no tag '{word}'", hint=f"it has {', '.join(before) or 'none'}")
    kept = tuple(tag for tag in before if tag not in words) if remove else tuple(dict.fromkeys((*before, *words)))
    safe_files.write(folder / TAGS, msgspec.json.encode(kept) + b"\n")
    return kept
