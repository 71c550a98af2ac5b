"""gcprof plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from profiler.cli import completion
from profiler.cli.output import one_of, say_failure
from profiler.cli.signals import heeded
from profiler.workflows import Interrupted

DEEPEST = 8
CODE = ("python", "hf", "fsdp")


def plan(
    model: Annotated[
        str | None, typer.Argument(help="A model as for `gcprof run --model`.", autocompletion=completion.models)
    ] = None,
    budget: Annotated[str | None, typer.Option(help="8GiB, 60% of the peak without checkpointing, or max.")] = None,
    stages: Annotated[Path | None, typer.Option(help="Plan from the costs that `gcprof stages` wrote.")] = None,
    levels: Annotated[
        int | None,
        typer.Option(min=1, max=DEEPEST, help="Checkpoints within checkpoints. [default: 1, more if needed]"),
    ] = None,
    frontier: Annotated[bool, typer.Option("--frontier", help="Show the fastest plan for every peak.")] = False,
    measure: Annotated[bool, typer.Option("--measure/--no-measure", help="Measure the plan beside others.")] = True,
    emit: Annotated[str | None, typer.Option(help="Print code to paste: python, hf or fsdp.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd, momentum, adam or adamw. [default: sgd]")] = None,
    batch_size: Annotated[str | None, typer.Option(help="Samples a micro-batch. [default: the model's]")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16, fp16, amp-bf16, amp-fp16.")] = None,
    accumulate: Annotated[str | None, typer.Option(help="Micro-batches a step. [default: 1]")] = None,
    blocks: Annotated[str | None, typer.Option(help="The blocks by name, as 'model.layers.*'.")] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda; or fake:h100 and others, not measured. [default: auto]")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Paired rounds of the comparison. [default: 3]")] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="plan.json for the plan; .csv, .png, .svg, .pdf: the frontier."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Find where to checkpoint so that the peak fits a budget at the least extra time, and prove it by measuring.

    Example: gcprof plan transformer --budget 60% -o plan.json
    """
    from profiler.cli.plan_options import Wish
    from profiler.cli.planned import carry_out
    from profiler.request.spec import Request

    words = Request(
        model=model, strategies="none", optimizer=optimizer, batch_size=batch_size, precision=precision,
        accumulate=accumulate, blocks=blocks, device=device,
    )  # fmt: skip
    if emit is not None:
        one_of(emit, CODE, flag="--emit")
    wish = Wish(
        budget=budget, stages=stages, levels=levels, frontier=frontier, measure=measure, emit=emit, rounds=rounds,
        output=output, force=force, json=json,
    )  # fmt: skip
    try:
        with heeded():
            code = carry_out(words, wish)
    except Interrupted as interrupted:
        code = interrupted.exit_code
        if json:
            say_failure(code)
    raise typer.Exit(code)
