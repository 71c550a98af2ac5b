"""gcprof timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from profiler.cli import completion, options
from profiler.cli.explain import traced_heading
from profiler.cli.output import COMMAND, aside, next_command


def timeline(
    target: options.Target,
    strategies: Annotated[
        str, typer.Option(help="One panel each; `gcprof strategies` lists them.", autocompletion=completion.strategies)
    ] = "none",
    segments: options.Segments = None,
    optimizer: options.Optimizer = None,
    batch_size: options.BatchSize = None,
    precision: options.Precision = None,
    accumulate: options.Accumulate = None,
    blocks: options.Blocks = None,
    device: options.TracedDevice = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="A png, svg or pdf.")] = Path("timeline.png"),
    force: options.ForceIfThere = False,
) -> None:
    """Draw what is live over a training step. Each strategy has a panel with its categories, phases and peak.

    Nothing is run: the step is traced.

    Example: gcprof timeline transformer --strategies none,all -o fig.png
    """
    from profiler.workflows.explain import TraceRequest, prediction, traced_steps

    words = prediction(
        strategies=strategies, segments=segments, optimizer=optimizer, batch_size=batch_size, precision=precision,
        accumulate=accumulate, blocks=blocks, device=device,
    )  # fmt: skip
    steps = traced_steps(TraceRequest(target=target, words=words, typed=COMMAND.get()))

    from profiler.core import optional_deps

    # only once there is something to draw
    plot = optional_deps.load("profiler.views.plots.timeline", needs="matplotlib").plot
    traces = {str(step.case.strategy): step.followed.trace for step in steps}
    path = plot(traces, title=traced_heading(steps[0].case), path=output, force=force)
    aside(f"wrote {path}")
    next_command("gcprof", "explain", target, "--strategy", str(steps[-1].case.strategy))
