"""gcprof list."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from profiler.cli.output import aside, encoding, next_command, say, say_bytes, width
from profiler.runs import RESULTS


def list_runs(
    folder: Annotated[Path, typer.Option("--folder", help="Where the run folders are.")] = RESULTS,
    ref: Annotated[bool, typer.Option("--ref", help="The runs that come with gcprof, to compare with.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """List the runs, the newest last.

    Example: gcprof list
    """
    from profiler.core.case import encode
    from profiler.core.errors import UserError
    from profiler.views.tables.listing import overviews, references, run_list

    if not os.path.isdir(folder) and folder != RESULTS:
        raise UserError(f"there is no folder '{folder}'", hint="name the folder that holds the run folders")
    if ref and folder != RESULTS:
        raise UserError("--folder has no effect with --ref", hint="leave one of them out")
    listed = references() if ref else overviews(folder)
    if json:
        say_bytes(encode(listed) + b"\n")
    elif listed:
        say(run_list(listed, width=width(), encoding=encoding()))
        next_command("gcprof", "show", listed[-1].name if ref else str(folder / listed[-1].name))
    else:
        aside(f"no runs in {folder}/ yet")
        next_command("gcprof", "run")
