"""gcprof predict and gcprof rehearse: what `gcprof run` would measure, without the device."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
import typer

from profiler.cli import options
from profiler.cli.options import Words
from profiler.cli.output import COMMAND, Terminal, interruptible
from profiler.cli.run import print_run
from profiler.core.errors import UserError
from profiler.core.units import parse_bytes, parse_memory
from profiler.request.spec import Request


def predict(
    words: Annotated[Request, Words((*options.SWEEP, "routing", "calibrate"), model=options.Models)] = Request(),
    device: Annotated[str, typer.Option(help="GPUs: t4, a100-80, rtx-4090, ...; cuda, an H100; or cpu")] = "cuda",
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Also rehearse every case, and show the prediction's error.")
    ] = False,
    output: options.RunFolder = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the run in a folder below results/.")] = False,
    json: options.JsonOrTable = False,
    quiet: options.Quiet = False,
) -> None:
    """Predict what `gcprof run` would measure, without the device.

    The bytes on a GPU are rehearsed, by PyTorch's own CUDA code, where torch can do that: on Linux, with its CUDA
    build. Elsewhere they are estimated, as they are for cpu and fake:t4, and with --routing and --calibrate.

    Example: gcprof predict transformer --strategies all,selective --device h100
    """
    from profiler.core.gpu_specs import to_rehearse
    from profiler.workflows.absent_gpus import for_gpus
    from profiler.workflows.run import RunRequest, run

    is_kept = keep or output is not None
    terminal = Terminal(is_quiet=quiet, names_logs=is_kept)
    if rehearse and (words.calibrate or device in ("cuda", "cpu")):
        raise UserError("--rehearse is for one GPU, and calibrates nothing", hint="name it: --device h100")
    is_estimated = bool(words.calibrate) or words.routing is not None
    device = to_rehearse(device) if rehearse else for_gpus(device, say=terminal.say, is_estimated=is_estimated)
    words = msgspec.structs.replace(words, device=device, predict=rehearse or None)
    with interruptible(json=json), TemporaryDirectory(prefix="gcprof-") as folder:
        place = output if is_kept else Path(folder) / "run"
        request = RunRequest(words=words, output=place, typed=COMMAND.get(), is_kept=is_kept)
        raise typer.Exit(print_run(run(request, terminal), json=json, is_kept=is_kept))


def rehearse(
    words: Annotated[Request, Words(options.SWEEP, model=options.Models)] = Request(),
    device: Annotated[str, typer.Option(help="GPUs: t4, a100-80, h100, rtx-4090, ...")] = "h100",
    memory: Annotated[
        str | None, typer.Option(help="Memory of the GPU: 11GiB, or 60% of its own. [default: all of it]")
    ] = None,
    context: Annotated[
        str | None, typer.Option(help="Memory CUDA takes besides PyTorch's, as 500MiB. [default: nothing]")
    ] = None,
    cudnn_workspace: Annotated[
        str | None, typer.Option(help="Workspace cuDNN takes for a convolution, as 64MiB. [default: nothing]")
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(help="A run measured on this GPU: sets the two options above where they are not given."),
    ] = None,
    output: options.RunFolder = None,
    json: options.JsonOrTable = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a training step with PyTorch's own CUDA code, but without the GPU: its memory, to the byte.

    After `--`, or from a word FILE.py on, follows your own training command, which is run unchanged. It takes --device
    (t4, h100:8), --memory, --context, -L, --steps, --batches, --limit, --allow-writes, --fail-on, -o, --json and
    --quiet; `gcprof rehearse --help -- x` explains them.

    Example: gcprof rehearse hf:llama --strategies all --precision bf16
    """
    from profiler.core.gpu_specs import to_rehearse
    from profiler.workflows.absent_gpus import calibrated
    from profiler.workflows.run import RunRequest, run

    if memory is not None:
        parse_memory(memory, flag="--memory")
    context = None if context == "0" else context  # a model's steps have none, if it is not asked for
    for flag, size in {"--context": context, "--cudnn-workspace": cudnn_workspace}.items():
        if size is not None:
            parse_bytes(size, flag=flag)
    sizes = {"memory": memory, "context": context, "cudnn_workspace": cudnn_workspace}
    device = calibrated(device, calibrate, **sizes) if calibrate else to_rehearse(device, **sizes)
    words = msgspec.structs.replace(words, device=device)
    request = RunRequest(words=words, output=output, typed=COMMAND.get())
    terminal = Terminal(is_quiet=quiet, names_logs=output is not None)
    with interruptible(json=json):
        raise typer.Exit(print_run(run(request, terminal), json=json, is_look=output is None))
