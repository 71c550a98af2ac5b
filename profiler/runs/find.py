"""Which run folder a word means."""

from __future__ import annotations

import os
from pathlib import Path

from profiler.core.errors import UserError, nearest
from profiler.runs import RESULTS, references

LISTED = "`gcprof list` shows the runs"


def run_folder(word: str, *, below: Path = RESULTS) -> Path:
    """The run folder that is meant by a path, a name below the results, `last` or `ref:NAME`. Raises UserError."""
    if word.startswith(references.PREFIX):
        return references.find(word)
    if os.path.isfile(Path(word) / "manifest.json"):  # a name may be too long to ask for otherwise
        return Path(word)
    if word != "last" and os.path.exists(word):
        raise UserError(f"'{word}' has no manifest.json: it is no run folder", hint=LISTED, exit_code=4)
    known = runs(below)
    if not known and word == "last":
        raise UserError(f"there are no runs below '{below}'", hint="measure something first: gcprof run")
    if word == "last":
        return max(known, key=lambda path: ((path / "manifest.json").stat().st_mtime_ns, path.name))
    names = [path.name for path in known]
    if word in names:
        return below / word
    raise UserError(f"'{word}' is no run", hint=nearest(word, names) or LISTED, exit_code=4)


def runs(folder: Path) -> list[Path]:
    """The run folders below a folder, oldest first."""
    found = [path.parent for path in folder.glob("*/manifest.json") if not path.parent.name.startswith(".")]
    return sorted(found, key=lambda path: path.name)
