"""gcprof fit of a model; gcprof fit and plan with a user's command behind `--`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from profiler.cli import options
from profiler.cli.output import (
    SCRIPT,
    Terminal,
    aside,
    beside_code,
    interruptible,
    next_command,
    say,
    say_bytes,
    say_json,
    write_plan,
)
from profiler.cli.plan import CODE, Levels
from profiler.cli.run import say_assumed
from profiler.cli.script import A_PLAN_ALONE, SCHEMA, Batches, Module, gpus_of
from profiler.core.errors import CODE_ALONE, UserError, one_of, refuse_idle
from profiler.core.units import batch_text, bytes_text, count_text, parse_budget, parse_bytes, parse_memory
from profiler.workflows.spec import Request

if TYPE_CHECKING:
    from profiler.scripts.report import Asked
    from profiler.workflows.fit import FitRequest, Fitted
    from profiler.workflows.fit_command import Search
    from profiler.workflows.fit_sizes import Sizes


def fit(
    words: Annotated[Request, options.Words((*options.STEP, "routing"), options.Model, has_switches=False)],
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
    from profiler.core import gpu_specs
    from profiler.planning.plan_code import WAY_KINDS
    from profiler.views.export import refuse_output
    from profiler.workflows.fit import FitRequest
    from profiler.workflows.planner import PICTURES
    from profiler.workflows.stages import for_gpus, planned

    draws = output is not None and output.suffix.lower() in PICTURES
    refuse_output(output, force=force, kinds=(".json", *PICTURES), hint="plan.json, or frontier.png, .svg, .pdf")
    one_of(emit, WAY_KINDS, flag="--emit")
    refuse_idle({"--json": emit and json}, "with --emit", hint=CODE_ALONE)
    terminal = Terminal(is_quiet=quiet)
    of_batches = words.batch_size == "max"
    is_of_one = of_batches or memory is not None
    if is_of_one and "," in (device or ""):
        flag = "--batch-size max" if of_batches else "--memory"
        raise UserError(f"{flag} is of one GPU, not of '{device}'", hint="name one of them")
    gpus = []
    if not is_of_one and (device is None or "," in device):  # the smallest of all GPUs, or of these, is to be found
        gpus = for_gpus(device or ",".join(gpu_specs.names()), say=terminal.say).split(",")
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
        emit=emit, draws=draws,
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
            from profiler.core.errors import load_module

            plot = load_module("profiler.views.plots.frontier", needs="matplotlib").plot_levers
            limit = fitted.limit_bytes
            plot(fitted.curves, fitted.shown, chosen=fitted.chosen, limit=limit, path=output, force=force)
            aside(f"wrote {output}")
    if answer.code is None:
        with beside_code(request.emit):
            shown(json=json)
    else:
        say_bytes(answer.code.encode())
    if output is not None and answer.chosen and not request.draws:
        write_plan(answer.plan, output, force=force)
    return answer.exit_code


def _size(text: str | None, *, flag: str) -> int | None:
    return None if text is None else 0 if text == "0" else parse_bytes(text, flag=flag)


def _print(fitted: Fitted, *, json: bool) -> None:
    from profiler.views.tables import plans as view

    rows, chosen = fitted.shown, fitted.chosen
    if json:
        document = view.fit_document(
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


def _print_sizes(sizes: Sizes, *, json: bool) -> None:
    from profiler.core.gpu_specs import parse, to_rehearse
    from profiler.views.tables import plans as view
    from profiler.views.tables.columns import device_word
    from profiler.workflows.spec import optimizer_text

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


BATCH = "batch"  # is in the name of a script's own option for its batch
Device = Annotated[str, typer.Option(help="GPU to rehearse it on: t4, h100:8 (eight).")]
Steps = Annotated[int | None, typer.Option(min=1, help="End after so many optimizer steps.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="plan.json for the plan, if there is one.")]


def fit_script(
    memory: Annotated[
        str | None, typer.Option(help="Memory of each GPU it must fit in: 11GiB, or 60%. [default: all of --device]")
    ] = None,
    context: Annotated[
        str | None, typer.Option(help="What CUDA's context and libraries take of it, 0 too. [default: 600MiB]")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="GPU to rehearse it on: t4, h100:8 (eight). [default: h100, with --memory]")
    ] = None,
    steps: Steps = None,
    batches: Batches = None,
    module: Module = None,
    emit: Annotated[
        str | None, typer.Option(help="Print code to paste: python, or settings: hf, accelerate, torchtitan.")
    ] = None,
    output: Output = None,
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find what makes a training command fit a memory, with every lever; each way is the whole command, rehearsed.

    It combines checkpoints, the loss in chunks, the optimizer's kernels, inputs in host memory, steps in the backward.

    --emit python prints code that does the same without gcprof, to call once the model and optimizer are made.

    Example: gcprof fit --memory 11GiB --device t4 -- python train.py --batch-size 64
    """
    from profiler.planning.plan_code import WAY_KINDS
    from profiler.workflows import fit_command

    one_of(emit, WAY_KINDS, flag="--emit")
    refuse_idle({"--json": emit and json}, "with --emit", hint=CODE_ALONE)
    limit = _limit_of_script(memory, device)
    asked = _asked(device or "h100", context, output, force=force, steps=steps, batches=batches, module=module)
    fitted = fit_command.fit(asked, limit, (lambda text: None) if quiet else aside)
    is_changed = fitted.chosen is not None and fitted.chosen is not fitted.ways[0]
    if json:
        _say_document(fitted)
    elif fitted.chosen and is_changed and emit is not None:
        say_bytes(fit_command.code(fitted.chosen, emit).encode())
    else:
        with beside_code(emit):
            _print_script(fitted, source="assumed" if context is None else "as asked")
    if output is not None and fitted.chosen:
        write_plan(fitted.chosen.plan, output, force=force)
    again = _words({
        "--device": device, "--context": context, "--steps": steps, "--batches": batches, "--module": module,
    })  # fmt: skip
    if fitted.chosen and is_changed:
        script = ("--", *SCRIPT.get())
        if fitted.chosen.plan and output is None:
            next_command("gcprof", "fit", *_words({"--memory": memory}), *again, "-o", "plan.json", *script)
        else:
            label = fitted.chosen.label.replace("plan", f"plan:file={output}", 1)
            next_command("gcprof", "rehearse", *again, "--strategies", f"none,{label}", *script)
    raise typer.Exit(fitted.exit_code)


def _limit_of_script(memory: str | None, device: str | None) -> int | float:
    """Return what a command must fit in, as bytes or a part of each GPU's. Raises UserError if neither is named."""
    if memory is None and device is None:
        options.refuse_behind("--memory", "--device")
        message = "fit needs --memory, or the --device in whose memory it is to fit"
        raise UserError(message, hint="gcprof fit --memory 11GiB --device t4 -- python train.py --batch-size 64")
    return parse_memory(memory or "100%", flag="--memory")


def plan_script(
    budget: Annotated[
        str | None, typer.Option(help="Of allocated memory: 11GiB; 60% of the peak of the command as it is.")
    ] = None,
    device: Device = "h100",
    levels: Levels = None,
    steps: Steps = None,
    batches: Batches = None,
    module: Module = None,
    emit: Annotated[str | None, typer.Option(help="Print code to paste: python, hf or fsdp.")] = None,
    output: Output = None,
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the fastest plan under which a training command fits a memory budget: its whole peak, as rehearsed.

    Example: gcprof plan --budget 11GiB --device t4 -o plan.json -- python train.py --batch-size 64
    """
    from profiler.planning.plan_code import emit as code
    from profiler.workflows import fit_command

    one_of(emit, CODE, flag="--emit")
    refuse_idle({"-o": emit and output, "--json": emit and json}, "with --emit", hint=CODE_ALONE)
    if budget is None:
        raise UserError("plan needs a budget", hint="--budget 11GiB, or --budget 60% of the command's own peak")
    parse_budget(budget, whole_bytes=0)
    asked = _asked(device, None, output, force=force, steps=steps, batches=batches, module=module)
    fitted = fit_command.plan(asked, budget, levels=levels, say=(lambda text: None) if quiet else aside)
    chosen = fitted.chosen
    made = chosen.plan if chosen else None
    repairs = any(one["has_batchnorm"] for one in chosen.changed) if chosen else False
    if json:
        _say_plan(fitted)
    elif emit is None or made is None:
        with beside_code(emit):
            _print_script(fitted)
    else:
        say_bytes(code(made, emit, repair_batchnorm=repairs).encode())
    again = _words({"--device": device, "--steps": steps, "--batches": batches, "--module": module})
    script = ("--", *SCRIPT.get())
    if made and output is not None:
        write_plan(made, output, force=force)
        if any("#" in name for name in made.fingerprint):  # calls, for which there is no code
            next_command("gcprof", "rehearse", *again, "--strategies", f"plan:file={output}", *script)
        else:
            repair = ["--repair-batchnorm"] if repairs else []
            next_command("gcprof", "plan", "--from", str(output), "--emit", "python", *repair)
    elif made and emit is None:
        deep = _words({"--levels": levels})
        same = ("--budget", budget, *again, *deep)
        next_command("gcprof", "plan", *same, "-o", "plan.json", *script)
    raise typer.Exit(fitted.exit_code)


def _asked(device: str, context: str | None, output: Path | None, *, force: bool, **how: Any) -> Asked:
    """Return the command as it is to be rehearsed. Raises UserError for several GPUs, or a file it cannot write."""
    from profiler.scripts.report import Asked
    from profiler.views.export import refuse_output

    refuse_output(output, force=force, kinds=[".json"], hint=A_PLAN_ALONE)
    gpus = gpus_of(device, memory=None, context=context)
    if len(gpus) > 1:
        raise UserError(f"--device '{device}': a command is made to fit one kind of GPU", hint="--device t4")
    return Asked(words=tuple(SCRIPT.get()), gpus=gpus[0], **how)


def _words(given: dict[str, object]) -> list[str]:
    return [word for flag, value in given.items() if value is not None for word in (flag, str(value))]


def _print_script(fitted: Search, *, source: str | None = None) -> None:
    """Print a row for each way; `source` says how CUDA's context is known, None if it is not part of what must fit."""
    from profiler.core import gpu_specs
    from profiler.scripts.report import estimate_caveat
    from profiler.views.tables import plans as view

    whole, chosen = fitted.ways[0], fitted.chosen
    context_bytes = whole.variant.context_bytes if source else 0
    taken = f"; {view.context_text(context_bytes, source)}" if source and context_bytes else ""
    allocated = "" if source else ", of allocated memory"
    number = f"rehearsed: the whole command, {count_text(fitted.num_rehearsed, 'time')}"
    below = [f"to fit: {bytes_text(fitted.limit_bytes)}{allocated}{taken}", number]
    below += view.left_out_lines(fitted.left_out)
    if fitted.others:
        others = ", ".join(fitted.others)
        below.append(f"plans are of {fitted.module} alone, the largest model; --module plans for another: {others}")
    if chosen and not fitted.has_spare:
        how = "PyTorch gives back there what it has cached, and cuDNN takes smaller workspaces"
        below.append(f"{chosen.label} fits a GPU that has no more memory: {how}")
    elif chosen is whole:
        below.append("it fits as it is")
    elif chosen is None:
        least = fitted.least
        missing = bytes_text((least.needed_bytes or 0) - fitted.limit_bytes)
        below.append(f"nothing fits: the least is {least.label}, which needs {missing} more")
        if source:
            batch = [word for word in SCRIPT.get() if BATCH in word.lower() and not word.endswith(".py")]
            how = f"by {batch[0].partition('=')[0]}" if batch else "by its own option, if it has one"
            split = f"only the script itself can split its batch: a smaller one {how}, and accumulated gradients"
            below += [view.need_text(least.variant), f"micro-batches: {split}"]
    if whole.variant.is_cut:
        below.append("only what ran is known: --steps or --batches ended it early")
    if whole.variant.sized_at:
        below.append(f"sizes depend on values that are assumed, at {', '.join(whole.variant.sized_at)}")
    if len(fitted.ways) > 1 and whole.variant.gpu:
        rates = gpu_specs.find(whole.variant.gpu)
        below.append(f"note: {estimate_caveat(rates, has_ranks=len(whole.variant.processes) > 1)}")
    rows = [(way.label, way.variant, way.needed_bytes) for way in fitted.ways]
    place = next((place for place, way in enumerate(fitted.ways) if way is chosen), None)
    say(view.script_table(rows, chosen=place, limit_bytes=fitted.limit_bytes, below=below))


def _say_document(fitted: Search) -> None:
    """Print what `--json` prints."""
    from profiler.core.case import encode_indented

    ways = [
        {
            "way": way.label, "outcome": way.variant.outcome, "needed_bytes": way.needed_bytes,
            "fits": way.fits(fitted.limit_bytes), "is_chosen": way is fitted.chosen, "plan": way.plan,
            "variant": way.variant,
        }
        for way in fitted.ways
    ]  # fmt: skip
    fields = {
        "schema": SCHEMA, "exit_code": fitted.exit_code, "memory_bytes": fitted.limit_bytes,
        "context_bytes": fitted.ways[0].variant.context_bytes, "ways": ways, "left_out": fitted.left_out,
        "num_rehearsed": fitted.num_rehearsed,
    }  # fmt: skip
    say_bytes(encode_indented(fields))


def _say_plan(fitted: Search) -> None:
    """Print what `plan --json` prints."""
    whole, chosen = fitted.ways[0], fitted.chosen
    made = chosen if chosen and chosen.plan else None
    fields = {
        "schema": SCHEMA, "exit_code": fitted.exit_code, "budget_bytes": fitted.limit_bytes,
        "fits_as_it_is": chosen is whole, "why": None if chosen else "; ".join(fitted.left_out.values()),
        "module": fitted.module, "plan": made and made.plan, "whole": whole.variant, "planned": made and made.variant,
    }  # fmt: skip
    say_json(fields)
