"""`gcprof predict`: the words of a prediction, which runs nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from profiler.cli import completion
from profiler.cli.carry import start
from profiler.cli.output import say_failure
from profiler.cli.signals import Interrupted, heeded
from profiler.core.errors import UserError


def predict(
    model: Annotated[
        str | None,
        typer.Argument(
            help="Models, as NAME:option=value,...; `gcprof models` lists them.", autocompletion=completion.models
        ),
    ] = None,
    segments: Annotated[str | None, typer.Option(help="Numbers of segments: 1,2,4 or 1..32 or 1..32:x2.")] = None,
    strategies: Annotated[
        str | None,
        typer.Option(help="Other strategies; `gcprof strategies` lists them.", autocompletion=completion.strategies),
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd, momentum, adam or adamw. [default: sgd]")] = None,
    batch_size: Annotated[str | None, typer.Option(help="Samples a micro-batch. [default: the model's]")] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, bf16, fp16, amp-bf16, amp-fp16; several make an axis. [default: fp32]")
    ] = None,
    accumulate: Annotated[str | None, typer.Option(help="Micro-batches a step: 4 or 1,2,4. [default: 1]")] = None,
    parallel: Annotated[
        str | None, typer.Option(help="How the ranks train together: ddp or fsdp2. [default: ddp]")
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(help="Processes that train together: what one of them holds. [default: 1]")
    ] = None,
    blocks: Annotated[
        str | None, typer.Option(help="The blocks by name, as 'model.layers.*'; `gcprof blocks` shows those found.")
    ] = None,
    keep_grads: Annotated[
        bool | None, typer.Option("--keep-grads", help="Zero gradients in place: they persist between steps.")
    ] = None,
    device: Annotated[str, typer.Option(help="cuda, cpu, or GPUs: t4, a100-80, h100, rtx-4090, ...")] = "cuda",
    calibrate: Annotated[
        bool | None,
        typer.Option("--calibrate", help="Measure `none` here first, and take its operators' workspaces over."),
    ] = None,
    fit: Annotated[bool, typer.Option("--fit", help="Show which GPUs hold it, and with which strategy.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The run folder; it must not exist yet.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")] = False,
) -> None:
    """Predict what `gcprof run` would measure, on a device that need not be there.

    Example: gcprof predict transformer --strategies all,selective --batch-size 8,64 --device h100
    """
    from profiler.core.case import FAKE
    from profiler.request.spec import Request

    if fit and (json or device != "cuda"):
        flag = "--json" if json else "--device"
        raise UserError(f"{flag} has no effect with --fit", hint="it looks at all GPUs; leave one of them out")
    words = Request(
        model=model, segments=segments, strategies=strategies, optimizer=optimizer, batch_size=batch_size,
        precision=precision, accumulate=accumulate, parallel=parallel, ranks=ranks, blocks=blocks,
        keep_grads=keep_grads, calibrate=calibrate,
        device=",".join(word if word.startswith(FAKE) else FAKE + word for word in device.split(",")),
    )  # fmt: skip
    try:
        with heeded():
            code = start(words, output=output, json=json, fit=fit)
    except Interrupted as interrupted:
        code = interrupted.exit_code
        if json:
            say_failure(code)
    raise typer.Exit(code)
