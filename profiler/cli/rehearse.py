"""gcprof rehearse."""

from __future__ import annotations

from typing import Annotated

import typer

from profiler.cli import options
from profiler.cli.added_options import Switches
from profiler.cli.output import COMMAND, Terminal, end_with
from profiler.cli.run import print_run


def rehearse(
    model: options.Models = None,
    segments: options.Segments = None,
    strategies: options.Strategies = None,
    optimizer: options.Optimizer = None,
    batch_size: options.BatchSize = None,
    precision: options.Precisions = None,
    accumulate: options.Accumulates = None,
    parallel: options.Parallel = None,
    ranks: Annotated[
        str | None, typer.Option(help="Processes that train together: the first of them is rehearsed. [default: 1]")
    ] = None,
    blocks: options.FoundBlocks = None,
    switches: Switches | None = None,
    device: Annotated[str, typer.Option(help="GPUs: t4, a100-80, h100, rtx-4090, ...")] = "h100",
    memory: Annotated[
        str | None, typer.Option(help="Memory of the GPU: 11GiB, or 60% of its own. [default: all of it]")
    ] = None,
    context: Annotated[
        str | None, typer.Option(help="What CUDA takes of it besides PyTorch, as 500MiB. [default: nothing]")
    ] = None,
    cudnn_workspace: Annotated[
        str | None, typer.Option(help="What cuDNN takes for a convolution, as 64MiB. [default: nothing]")
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(help="A measured run of this GPU: what CUDA and cuDNN took there, where it is not said here."),
    ] = None,
    output: options.RunFolder = None,
    json: options.JsonOrTable = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a training step by PyTorch's own CUDA code on a GPU that is not there: its memory, to the byte.

    Example: gcprof rehearse hf:llama --strategies all --precision bf16
    """
    from profiler.core.units import parse_bytes, parse_memory
    from profiler.request.device_choice import to_rehearse
    from profiler.request.spec import Request
    from profiler.workflows.measured_sizes import calibrated
    from profiler.workflows.run import RunRequest, run

    if memory is not None:
        parse_memory(memory, flag="--memory")
    for flag, size in {"--context": context, "--cudnn-workspace": cudnn_workspace}.items():
        if size is not None:
            parse_bytes(size, flag=flag)
    sizes = {"memory": memory, "context": context, "cudnn_workspace": cudnn_workspace}
    words = Request(
        model=model, segments=segments, strategies=strategies, optimizer=optimizer, batch_size=batch_size,
        precision=precision, accumulate=accumulate, parallel=parallel, ranks=ranks, blocks=blocks,
        **switches or {},
        device=calibrated(device, calibrate, **sizes) if calibrate else to_rehearse(device, **sizes),
    )  # fmt: skip
    request = RunRequest(words=words, output=output, typed=COMMAND.get())
    end_with(lambda: print_run(run(request, Terminal(is_quiet=quiet)), json=json), json=json)
