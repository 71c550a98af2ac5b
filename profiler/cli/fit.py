"""gcprof fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from profiler.cli import options
from profiler.cli.options import Words
from profiler.cli.output import COMMAND, Terminal, aside, interruptible, next_command, say, say_bytes
from profiler.core.errors import UserError
from profiler.core.units import bytes_text, parse_bytes, parse_memory
from profiler.request.spec import Request

if TYPE_CHECKING:
    from profiler.workflows.fit import Fitted


def fit(
    words: Annotated[
        Request, Words(("optimizer", "batch_size", "precision", "blocks"), options.Model, has_switches=False)
    ],
    memory: Annotated[str, typer.Option(help="Memory it must fit in: 11GiB, 11G, or 60% of the device's.")],
    context: Annotated[
        str | None, typer.Option(help="Memory that CUDA itself takes, 0 too. [default: as measured, or 600MiB]")
    ] = None,
    host_memory: Annotated[
        str | None, typer.Option(help="Pinned host memory that offload may take, 0 too. [default: any]")
    ] = None,
    allow: Annotated[str | None, typer.Option(help="Levers that change what is trained: 8bit, bf16-state.")] = None,
    device: options.PlannedDevice = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="plan.json for the plan, if there is one; or frontier.png, .svg, .pdf."),
    ] = None,
    emit: Annotated[
        str | None, typer.Option(help="Print code to paste instead: python, hf, accelerate or torchtitan.")
    ] = None,
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the fastest way to make a training step fit a memory, with every lever; each way was run.

    It combines checkpoints with the loss in chunks, other optimizer kernels, steps in the backward and micro-batches.

    Example: gcprof fit hf:gpt2 --memory 8GiB --device h100
    """
    from profiler.views.export.files import refuse_output
    from profiler.workflows.absent_gpus import planned
    from profiler.workflows.fit import FitRequest
    from profiler.workflows.fit import fit as work
    from profiler.workflows.planner import PICTURES

    draws = output is not None and output.suffix.lower() in PICTURES
    if output is not None:
        refuse_output(output, force=force)
        if output.suffix.lower() not in (".json", *PICTURES):
            raise UserError(f"cannot write '{output.name}'", hint="plan.json, or frontier.png, .svg, .pdf")
    if emit is not None and json:
        raise UserError("--json has no effect with --emit", hint="it prints the code alone; leave one of them out")
    terminal = Terminal(is_quiet=quiet)
    words = msgspec.structs.replace(words, strategies="none", device=planned(device, say=terminal.say))
    request = FitRequest(
        words=words, limit=parse_memory(memory, flag="--memory"), allow=tuple(allow.split(",")) if allow else (),
        context_bytes=_size(context, flag="--context"), most_host_bytes=_size(host_memory, flag="--host-memory"),
        emit=emit, draws=draws, typed=COMMAND.get(),
    )  # fmt: skip
    with interruptible(json=json):
        fitted = work(request, terminal)
        if fitted.code is None:
            _print(fitted, json=json)
        else:
            say_bytes(fitted.code.encode())
        if output is not None and fitted.curves:
            _draw(fitted, output, force=force)
        elif output is not None and fitted.plan:
            _write(fitted, output, force=force)
        raise typer.Exit(fitted.exit_code)


def _size(text: str | None, *, flag: str) -> int | None:
    return None if text is None else 0 if text == "0" else parse_bytes(text, flag=flag)


def _print(fitted: Fitted, *, json: bool) -> None:
    from profiler.views.tables import fit as view
    from profiler.views.tables.max_batch import context_text

    rows, chosen = fitted.shown, fitted.chosen
    needed, fits = list(map(fitted.needed_bytes, rows)), list(map(fitted.fits, rows))
    if json:
        document = view.document(
            rows, needed, fits, chosen=chosen, limit=fitted.limit_bytes, context_bytes=fitted.context_bytes,
            left_out=fitted.left_out,
        )  # fmt: skip
        say_bytes(document)
        return
    limit = bytes_text(fitted.limit_bytes)
    source = f"; {context_text(fitted.context_bytes, fitted.context_source)}" if fitted.context_source else ""
    below = [f"to fit: {limit}{source}", *(f"left out: {lever}: {why}" for lever, why in fitted.left_out.items())]
    if chosen is None:
        below += fitted.missing
    elif chosen is rows[0]:
        below.append("it fits as it is")
    say(view.table(rows, needed, fits, chosen=chosen, places=fitted.places, below=below))
    if chosen and chosen is not rows[0]:
        next_command("gcprof", "run", *fitted.words, "--strategies", str(chosen.case.label))


def _draw(fitted: Fitted, path: Path, *, force: bool) -> None:
    from profiler.core import optional_deps

    view = optional_deps.load("profiler.views.plots.fit", needs="matplotlib")
    view.plot(fitted.curves, fitted.shown, chosen=fitted.chosen, limit=fitted.limit_bytes, path=path, force=force)
    aside(f"wrote {path}")


def _write(fitted: Fitted, path: Path, *, force: bool) -> None:
    from profiler.core.case import encode_indented
    from profiler.views.export.files import write_whole

    write_whole(path, encode_indented(fitted.plan), force=force)
    aside(f"wrote {path}")
