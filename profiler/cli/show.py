"""gcprof show."""

from __future__ import annotations

from typing import Annotated

import typer

from profiler.cli.words import RUN_HELP, aside, encoding, next_command, run_folder, say, say_bytes, width


def show(
    run: Annotated[str, typer.Argument(help=RUN_HELP)] = "last",
    samples: Annotated[bool, typer.Option("--samples", help="Every raw time sample instead of the table.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The whole run as one JSON document.")] = False,
    columns: Annotated[
        int | None, typer.Option("--width", min=20, help="Width to print at; else the terminal's.")
    ] = None,
) -> None:
    """Show a run: memory, time, equality of gradients.

    Example: gcprof show last
    """
    from profiler.analysis import progress
    from profiler.analysis.rows import rows
    from profiler.errors import UserError
    from profiler.store import load

    if json and (samples or columns):
        flag = "--samples" if samples else "--width"
        raise UserError(
            f"{flag} has no effect with --json", hint="the document holds every sample; leave one of them out"
        )
    found = load(run_folder(run))
    for warning in found.warnings:
        aside(f"warning: {warning}")
    owed = len(progress.owed(found.manifest.plan, found.records))
    if json:
        from profiler.views.json import render

        say_bytes(render(found))
        return
    table = rows(found.records)
    if samples:
        from profiler.views.samples import samples as drawn
    else:
        from profiler.views.terminal import table as drawn
    if table:
        say(drawn(table, width=width(columns), encoding=encoding()))
    if owed:
        aside(f"partial: {owed} of {len(found.manifest.plan)} trials are not there yet")
    if any(row.readings.peak_bytes is not None and row.outcome == "ok" for row in table):
        next_command("gcprof", "plot", run, "--kind", "memory", "-o", "memory.png")
