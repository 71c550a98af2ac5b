"""gcprof plot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from profiler.cli import completion, options
from profiler.cli.output import aside, next_command, one_of


def plot(
    run: options.RunName = "last",
    kind: Annotated[
        str,
        typer.Option(
            "--kind",
            help="frontier, memory, time, samples; over axes: heat, growth, throughput.",
            autocompletion=completion.plots,
        ),
    ] = "frontier",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A png, svg or pdf. [default: KIND.png, for a paper .pdf]")
    ] = None,
    over: Annotated[
        str | None, typer.Option(help="Axes of heat (two) or growth (one): batch_size,depth. [default: chosen]")
    ] = None,
    style: Annotated[str, typer.Option(help="default, slides (16:9, larger type) or paper (one column).")] = "default",
    force: options.ForceIfThere = False,
) -> None:
    """Draw a run.

    frontier: peak memory against step time. memory: what the peak is made of. time: what the step takes.
    samples: every time sample. heat: the peak over two axes. growth: how it grows along one.
    throughput: samples a second at equal memory.

    Example: gcprof plot last --kind memory -o memory.png
    """
    from profiler import views
    from profiler.analysis.rows import rows
    from profiler.core import optional_deps
    from profiler.runs.find import run_folder
    from profiler.runs.store import load

    one_of(kind, views.PLOTS, flag="--kind")
    loaded = load(run_folder(run))
    for warning in loaded.warnings:
        aside(f"warning: {warning}")

    # only once there is something to draw
    draw = optional_deps.load("profiler.views.plots.plot", needs="matplotlib").plot

    from profiler.views.plots.style import STYLES

    chosen = STYLES[one_of(style, STYLES, flag="--style")]
    path = draw(
        rows(loaded.records),
        kind=kind,
        path=output or Path(f"{kind}.{chosen.suffix}"),
        force=force,
        style=chosen,
        over=over.split(",") if over else (),
    )
    aside(f"wrote {path}")
    next_command("gcprof", "export", run, "--to", "csv", "-o", "table.csv")
