"""gcprof timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from profiler.cli import completion
from profiler.cli.following import heading, request, steps
from profiler.cli.output import aside, next_command


def timeline(
    target: Annotated[
        str,
        typer.Argument(
            help="A model as for `gcprof run --model`, or a run folder.", autocompletion=completion.runs_or_models
        ),
    ],
    strategies: Annotated[
        str, typer.Option(help="One panel each; `gcprof strategies` lists them.", autocompletion=completion.strategies)
    ] = "none",
    segments: Annotated[str | None, typer.Option(help="Numbers of segments: 1,2,4 or 1..32 or 1..32:x2.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd, momentum, adam or adamw. [default: sgd]")] = None,
    batch_size: Annotated[str | None, typer.Option(help="Samples a micro-batch. [default: the model's]")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16, fp16, amp-bf16, amp-fp16.")] = None,
    accumulate: Annotated[str | None, typer.Option(help="Micro-batches a step. [default: 1]")] = None,
    blocks: Annotated[str | None, typer.Option(help="The blocks by name, as 'model.layers.*'.")] = None,
    device: Annotated[str | None, typer.Option(help="cuda, cpu, or a GPU: t4, h100, ... [default: cuda]")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="A png, svg or pdf.")] = Path("timeline.png"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it is there.")] = False,
) -> None:
    """Draw what is live over one training step, by category, with its phases and its peak: a panel a strategy.

    Nothing is run: the step is traced. Example: gcprof timeline transformer --strategies none,all -o fig.png
    """
    words = request(
        strategies=strategies, segments=segments, optimizer=optimizer, batch_size=batch_size, precision=precision,
        accumulate=accumulate, blocks=blocks, device=device,
    )  # fmt: skip
    found = steps(target, words)

    from profiler.core import optional_deps

    # only once there is something to draw
    plot = optional_deps.load("profiler.views.plots.timeline", needs="matplotlib").plot
    traces = {str(step.case.strategy): step.followed.trace for step in found}
    path = plot(traces, title=heading(found[0].case), path=output, force=force)
    aside(f"wrote {path}")
    next_command("gcprof", "explain", target, "--strategy", str(found[-1].case.strategy))
