"""gcprof plot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from profiler.cli import completion
from profiler.cli.words import RUN_HELP, aside, next_command, one_of, run_folder


def plot(
    run: Annotated[str, typer.Argument(help=RUN_HELP, autocompletion=completion.runs)] = "last",
    kind: Annotated[
        str, typer.Option("--kind", help="frontier, memory, time or samples.", autocompletion=completion.plots)
    ] = "frontier",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A png, svg or pdf; else KIND.png.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it is there.")] = False,
) -> None:
    """Draw a run.

    frontier: peak memory against step time. memory: what the peak is made of. time: what the step takes.
    samples: every single one.

    Example: gcprof plot last --kind memory -o memory.png
    """
    from profiler import views
    from profiler.analysis.rows import rows
    from profiler.store import load

    one_of(kind, views.PLOTS, flag="--kind")
    found = load(run_folder(run))
    for warning in found.warnings:
        aside(f"warning: {warning}")

    from profiler.views.plot import plot as draw  # matplotlib: only once there is something to draw

    path = draw(rows(found.records), kind=kind, path=output or Path(f"{kind}.png"), force=force)
    aside(f"wrote {path}")
    next_command("gcprof", "export", run, "--to", "csv", "-o", "table.csv")
