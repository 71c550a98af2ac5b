"""The runs that come with gcprof: results/reference/DEVICE/MODEL. Knows nothing of what is in them."""

from __future__ import annotations

import difflib
from importlib.resources import files
from pathlib import Path

from profiler.core.errors import UserError

PREFIX = "ref:"


def folder() -> Path:
    """Where they are: in the installed package, else in the checkout."""
    installed = Path(str(files("profiler"))) / "results" / "reference"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "results" / "reference"


def names() -> tuple[str, ...]:
    """Every one as `DEVICE/MODEL`."""
    return tuple(sorted(path.parent.relative_to(folder()).as_posix() for path in folder().glob("*/*/manifest.json")))


def find(word: str) -> Path:
    """The run folder of `ref:DEVICE/MODEL`. Raises UserError (exit code 4), naming the nearest, where there is none."""
    name = word.removeprefix(PREFIX)
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1, cutoff=0.5)
        hint = f"did you mean '{PREFIX}{near[0]}'?" if near else "`gcprof list --ref` shows them"
        raise UserError(f"no reference run is called '{name}'", hint=hint, exit_code=4)
    return folder() / name
