"""gcprof export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from profiler.cli.words import RUN_HELP, aside, next_command, one_of, run_folder, say_bytes


def export(
    run: Annotated[str, typer.Argument(help=RUN_HELP)] = "last",
    to: Annotated[str, typer.Option("--to", help="csv, parquet, json, md or latex.")] = "csv",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The file to write; else stdout.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it is there.")] = False,
) -> None:
    """Export a run as csv, parquet, json, md or latex.

    Example: gcprof export last --to csv -o table.csv
    """
    from profiler import views
    from profiler.errors import UserError
    from profiler.store import load
    from profiler.views.files import write_whole

    kind = one_of(to, views.EXPORTS, flag="--to")
    if force and output is None:
        raise UserError("--force has no effect on stdout", hint="name a file with -o")
    if kind == "parquet" and output is None and sys.stdout.isatty():
        raise UserError("a parquet file is not for a terminal", hint="name a file with -o")
    found = load(run_folder(run))
    for warning in found.warnings:
        aside(f"warning: {warning}")
    text: bytes = views.load(views.EXPORTS[kind])(found)
    if output is None:
        say_bytes(text)
        return
    aside(f"wrote {write_whole(output, text, force=force)}")
    next_command("gcprof", "plot", run, "--kind", "frontier", "-o", "frontier.png")
