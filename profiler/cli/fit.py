"""gcprof fit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from profiler.cli import options
from profiler.cli.options import Words
from profiler.cli.output import (
    COMMAND,
    Terminal,
    aside,
    interruptible,
    next_command,
    one_of,
    say,
    say_bytes,
    write_plan,
)
from profiler.cli.run import say_assumed
from profiler.core.errors import CODE_ALONE, UserError, refuse_idle
from profiler.core.units import batch_text, bytes_text, parse_bytes, parse_memory
from profiler.request.spec import Request

if TYPE_CHECKING:
    from profiler.workflows.fit import FitRequest, Fitted
    from profiler.workflows.fit_sizes import Sizes


def fit(
    words: Annotated[Request, Words((*options.STEP, "routing"), options.Model, has_switches=False)],
    memory: Annotated[
        str | None, typer.Option(help="Memory it must fit in: 11GiB, 11G, or 60%. [default: the device's]")
    ] = None,
    context: Annotated[
        str | None, typer.Option(help="Memory that CUDA itself takes, 0 too. [default: as measured, or 600MiB]")
    ] = None,
    host_memory: Annotated[
        str | None, typer.Option(help="Pinned host memory that offload may take, 0 too. [default: any]")
    ] = None,
    allow: Annotated[str | None, typer.Option(help="Levers that change what is trained: 8bit, bf16-state.")] = None,
    device: Annotated[
        str | None,
        typer.Option(help="cpu, cuda; or GPUs that need not be here: t4, h100, ... [default: all, without --memory]"),
    ] = None,
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
    With --batch-size max it finds the largest batch of each way, with samples a second. Without --memory, and with no
    --device or several, it finds the smallest GPU for each way.

    Example: gcprof fit hf:gpt2 --memory 8GiB --device h100
    """
    from profiler.planning.plan_code import WAY_KINDS
    from profiler.views.export.files import refuse_output
    from profiler.workflows.absent_gpus import planned
    from profiler.workflows.fit import FitRequest
    from profiler.workflows.planner import PICTURES

    draws = output is not None and output.suffix.lower() in PICTURES
    refuse_output(output, force=force, kinds=(".json", *PICTURES), hint="plan.json, or frontier.png, .svg, .pdf")
    if emit is not None:
        one_of(emit, WAY_KINDS, flag="--emit")
        refuse_idle({"--json": json}, "with --emit", hint=CODE_ALONE)
    terminal = Terminal(is_quiet=quiet)
    of_batches = words.batch_size == "max"
    is_of_one = of_batches or memory is not None
    if is_of_one and "," in (device or ""):
        flag = "--batch-size max" if of_batches else "--memory"
        raise UserError(f"{flag} is of one GPU, not of '{device}'", hint="name one of them")
    gpus = [] if is_of_one else _several(device, terminal)
    if draws and (of_batches or gpus):
        raise UserError("a picture is of one memory and batch", hint="--memory 11GiB, or -o plan.json")
    words = msgspec.structs.replace(
        words, strategies="none", batch_size=None if of_batches else words.batch_size,
        device=gpus[-1] if gpus else planned(device, say=terminal.say),
    )  # fmt: skip
    request = FitRequest(
        words=words, limit=1.0 if memory is None else parse_memory(memory, flag="--memory"),
        allow=tuple(allow.split(",")) if allow else (),
        context_bytes=_size(context, flag="--context"), most_host_bytes=_size(host_memory, flag="--host-memory"),
        emit=emit, draws=draws, typed=COMMAND.get(),
    )  # fmt: skip
    with interruptible(json=json):
        raise typer.Exit(_answer(request, gpus, terminal, of_batches=of_batches, output=output, force=force, json=json))


def _answer(
    request: FitRequest, gpus: list[str], terminal: Terminal, *, of_batches: bool, output: Path | None, force: bool,
    json: bool,
) -> int:  # fmt: skip
    """Find and print what is asked for, and write the plan or the picture; return the exit code."""
    from profiler.workflows.fit import fit as work
    from profiler.workflows.fit_sizes import find

    answer: Fitted | Sizes
    if of_batches or gpus:
        answer = sizes = find(request, gpus, terminal)
        shown = partial(_print_sizes, sizes)
    else:
        answer = fitted = work(request, terminal)
        shown = partial(_print, fitted)
        if output is not None and fitted.curves:
            _draw(fitted, output, force=force)
    if answer.code is None:
        shown(json=json)
    else:
        say_bytes(answer.code.encode())
    if output is not None and answer.plan and not request.draws:
        write_plan(answer.plan, output, force=force)
    return answer.exit_code


def _several(device: str | None, terminal: Terminal) -> list[str]:
    """Return the GPUs of which the smallest is to be found: all, or several that are named; none for one device."""
    from profiler.core import gpu_specs
    from profiler.workflows.absent_gpus import for_gpus

    if device is not None and "," not in device:
        return []
    return for_gpus(device or ",".join(gpu_specs.names()), say=terminal.say).split(",")


def _size(text: str | None, *, flag: str) -> int | None:
    return None if text is None else 0 if text == "0" else parse_bytes(text, flag=flag)


def _print(fitted: Fitted, *, json: bool) -> None:
    from profiler.views.tables import fit as view

    rows, chosen = fitted.shown, fitted.chosen
    if json:
        document = view.document(
            rows, list(map(fitted.needed_bytes, rows)), list(map(fitted.fits, rows)), chosen=chosen,
            limit=fitted.limit_bytes, context_bytes=fitted.context_bytes, left_out=fitted.left_out,
            floors={"+".join(chosen): nbytes for chosen, nbytes in fitted.floors.items()},
        )  # fmt: skip
        say_bytes(document)
        return
    say(fitted.table)
    if "--optimizer" not in fitted.words:
        say_assumed(rows)
    if chosen and chosen is not rows[0]:
        next_command("gcprof", "run", *fitted.words, "--strategies", str(chosen.case.label))


def _draw(fitted: Fitted, path: Path, *, force: bool) -> None:
    from profiler.core.errors import load_module

    plot = load_module("profiler.views.plots.frontier", needs="matplotlib").plot_levers
    plot(fitted.curves, fitted.shown, chosen=fitted.chosen, limit=fitted.limit_bytes, path=path, force=force)
    aside(f"wrote {path}")


def _print_sizes(sizes: Sizes, *, json: bool) -> None:
    from profiler.core.gpu_specs import parse, to_rehearse
    from profiler.request.spec import optimizer_text
    from profiler.views.tables import fit as view
    from profiler.views.tables.evidence import device_word

    rungs, chosen, of_batches = sizes.rungs, sizes.chosen, sizes.of_batches
    place = rungs[0].place
    if json:
        document = view.sizes_document(
            rungs, model=str(place.case.model), of_batches=of_batches, chosen=chosen, left_out=sizes.left_out
        )
        say_bytes(document)
        return
    case = place.case
    setting = f"{case.model}, {optimizer_text(case)}, {case.precision}"
    batch = batch_text(case.batch_size)
    question = (
        f"{device_word(case.device)}: the largest batch within {bytes_text(place.limit)}"
        if of_batches
        else f"{batch}: the smallest GPU that holds it"
    )
    below = view.left_out_lines(sizes.left_out)
    if sizes.context_source:
        below.insert(0, view.context_text(place.context_bytes, sizes.context_source))
    notes = [
        note for rung in rungs for row in (rung.row, rung.further) if row for note in row.notes if note.code == "GCP041"
    ]
    below += dict.fromkeys(f"note: {note.code} {note.text}" for note in notes)  # sizes that are too small
    say(view.sizes_table(rungs, of_batches=of_batches, chosen=chosen, title=f"{setting}, {question}", below=below))
    if chosen:
        gpu = parse(chosen.place.case.device).name
        found = ("--batch-size", str(chosen.reach)) if of_batches else ("--device", to_rehearse(gpu))
        next_command("gcprof", "run", *sizes.words, *found, "--strategies", str(chosen.label))
