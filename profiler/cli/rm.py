"""gcprof rm."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from profiler.cli import completion
from profiler.cli.output import aside
from profiler.core.errors import UserError


def rm(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="run", help="Run folders below results/, or any part of a name.", autocompletion=completion.runs
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove runs, after asking.

    Only folders below results/ are removed, never one that is being written to, and no link is followed.

    Example: gcprof rm 20261120T174900Z-mlp-3fa9c1
    """
    from profiler.runs import writer
    from profiler.runs.find import own_folder

    folders = list(dict.fromkeys(map(own_folder, runs)))
    for folder in folders:
        writer.refuse_removal(folder)
    for folder in folders:
        if not yes and not _is_sure(folder):
            raise UserError(f"'{folder}' is kept", hint="--yes removes without asking")
        writer.remove(folder)
        aside(f"removed {folder}")


def _is_sure(folder: Path) -> bool:
    """Whether the user says yes; where nobody answers, no."""
    from profiler.core.units import bytes_text
    from profiler.runs.find import read_tags
    from profiler.runs.writer import size_bytes
    from profiler.views.sanitize import plain

    words = f", tagged {', '.join(read_tags(folder))}" if read_tags(folder) else ""
    question = f"remove {folder} ({bytes_text(size_bytes(folder))}{words})? [y/N]"
    print(plain(question), end=" ", file=sys.stderr, flush=True)
    answer = sys.stdin.readline() if sys.stdin else ""
    if not answer.endswith("\n"):
        print(file=sys.stderr)
    return answer.strip().lower() in ("y", "yes")
