"""gcprof predict."""

from __future__ import annotations

from typing import Annotated

import typer

from profiler.cli import options
from profiler.cli.output import COMMAND, Terminal, end_with
from profiler.cli.run import print_run
from profiler.cli.switches import Switches
from profiler.core.errors import UserError


def predict(
    model: options.Models = None,
    segments: options.Segments = None,
    strategies: options.Strategies = None,
    optimizer: options.Optimizer = None,
    batch_size: options.BatchSize = None,
    precision: options.Precisions = None,
    accumulate: options.Accumulates = None,
    parallel: options.Parallel = None,
    ranks: Annotated[
        str | None, typer.Option(help="Processes that train together: what one of them holds. [default: 1]")
    ] = None,
    blocks: options.FoundBlocks = None,
    switches: Switches | None = None,
    device: Annotated[str, typer.Option(help="cuda, cpu, or GPUs: t4, a100-80, h100, rtx-4090, ...")] = "cuda",
    calibrate: Annotated[
        bool | None,
        typer.Option("--calibrate", help="Measure `none` here first, and use the workspaces of its operators."),
    ] = None,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Rehearse every case besides, and show the prediction's error.")
    ] = False,
    fit: Annotated[bool, typer.Option("--fit", help="Show which GPUs it fits, and with which strategy.")] = False,
    output: options.RunFolder = None,
    json: options.JsonOrTable = False,
) -> None:
    """Predict what `gcprof run` would measure, without the device.

    Example: gcprof predict transformer --strategies all,selective --batch-size 8,64 --device h100
    """
    from profiler.request.device_choice import to_predict, to_rehearse
    from profiler.request.spec import Request
    from profiler.workflows.run import RunRequest, run

    if fit and (json or device != "cuda"):
        flag = "--json" if json else "--device"
        raise UserError(f"{flag} has no effect with --fit", hint="it looks at all GPUs; leave one of them out")
    if rehearse and (fit or calibrate or device in ("cuda", "cpu")):
        raise UserError("--rehearse is for one GPU, and calibrates nothing", hint="name it: --device h100")
    words = Request(
        model=model, segments=segments, strategies=strategies, optimizer=optimizer, batch_size=batch_size,
        precision=precision, accumulate=accumulate, parallel=parallel, ranks=ranks, blocks=blocks,
        calibrate=calibrate, predict=rehearse or None, **switches or {},
        device=to_rehearse(device) if rehearse else to_predict(device),
    )  # fmt: skip
    request = RunRequest(words=words, output=output, typed=COMMAND.get())
    end_with(lambda: print_run(run(request, Terminal()), json=json, fit=fit), json=json)
