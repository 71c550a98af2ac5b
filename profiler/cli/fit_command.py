"""gcprof fit and gcprof plan with a user's command behind `--`: what makes it fit, and a plan for its model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profiler.cli import options
from profiler.cli.output import SCRIPT, aside, next_command, one_of, say, say_bytes, say_json, write_plan
from profiler.cli.plan import CODE, Levels
from profiler.cli.script import A_PLAN_ALONE, Batches, gpus_of
from profiler.core.errors import CODE_ALONE, UserError, refuse_idle
from profiler.core.units import bytes_text, count_text, parse_budget, parse_memory

if TYPE_CHECKING:
    from profiler.scripts.report import Asked
    from profiler.workflows.fit_command import Fitted

SCHEMA = 1
BATCH = "batch"  # is in the name of a script's own option for its batch
Device = Annotated[str, typer.Option(help="GPU to rehearse it on: t4, h100:8 (eight).")]
Steps = Annotated[int | None, typer.Option(min=1, help="End after so many optimizer steps.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="plan.json for the plan, if there is one.")]


def fit(
    memory: Annotated[str, typer.Option(help="Memory of each GPU it must fit in: 11GiB, 11G, or 60% of it.")],
    context: Annotated[
        str | None, typer.Option(help="What CUDA's context and libraries take of it, 0 too. [default: 600MiB]")
    ] = None,
    device: Device = "h100",
    steps: Steps = None,
    batches: Batches = None,
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

    if emit is not None:
        one_of(emit, WAY_KINDS, flag="--emit")
        refuse_idle({"--json": json}, "with --emit", hint=CODE_ALONE)
    limit = parse_memory(memory, flag="--memory")
    asked = _asked(device, context, steps, batches, output, force=force)
    fitted = fit_command.fit(asked, limit, (lambda text: None) if quiet else aside)
    is_changed = fitted.chosen is not None and fitted.chosen is not fitted.ways[0]
    if json:
        _say_document(fitted)
    elif fitted.chosen and is_changed and emit is not None:
        say_bytes(fit_command.code(fitted.chosen, emit).encode())
    else:
        _print(fitted, source="assumed" if context is None else "as asked")
    if output is not None and fitted.chosen and fitted.chosen.plan:
        write_plan(fitted.chosen.plan, output, force=force)
    again = _words({"--device": device, "--context": context, "--steps": steps, "--batches": batches})
    if fitted.chosen and is_changed:
        script = ("--", *SCRIPT.get())
        if fitted.chosen.plan and output is None:
            next_command("gcprof", "fit", "--memory", memory, *again, "-o", "plan.json", *script)
        else:
            label = fitted.chosen.label.replace("plan", f"plan:file={output}", 1)
            next_command("gcprof", "rehearse", *again, "--strategies", f"none,{label}", *script)
    raise typer.Exit(fitted.exit_code)


def plan(
    budget: Annotated[
        str | None, typer.Option(help="Of allocated memory: 11GiB; 60% of the peak of the command as it is.")
    ] = None,
    device: Device = "h100",
    levels: Levels = None,
    steps: Steps = None,
    batches: Batches = None,
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

    if emit is not None:
        one_of(emit, CODE, flag="--emit")
        refuse_idle({"-o": output is not None, "--json": json}, "with --emit", hint=CODE_ALONE)
    if budget is None:
        raise UserError("plan needs a budget", hint="--budget 11GiB, or --budget 60% of the command's own peak")
    parse_budget(budget, whole_bytes=0)
    asked = _asked(device, None, steps, batches, output, force=force)
    fitted = fit_command.plan(asked, budget, levels=levels, say=(lambda text: None) if quiet else aside)
    chosen = fitted.chosen
    made = chosen.plan if chosen else None
    if json:
        _say_plan(fitted)
    elif emit is None or made is None:
        _print(fitted)
    else:
        say_bytes(code(made, emit).encode())
    again, script = _words({"--device": device, "--steps": steps, "--batches": batches}), ("--", *SCRIPT.get())
    if made and output is not None:
        write_plan(made, output, force=force)
        if any("#" in name for name in made.fingerprint):  # calls, for which there is no code
            next_command("gcprof", "rehearse", *again, "--strategies", f"plan:file={output}", *script)
        else:
            next_command("gcprof", "plan", "--from", str(output), "--emit", "python")
    elif made and emit is None:
        deep = _words({"--levels": levels})
        same = ("--budget", budget, *again, *deep)
        next_command("gcprof", "plan", *same, "-o", "plan.json", *script)
    raise typer.Exit(fitted.exit_code)


def _asked(
    device: str, context: str | None, steps: int | None, batches: int | None, output: Path | None, *, force: bool
) -> Asked:
    """Return the command as it is to be rehearsed. Raises UserError for several GPUs, or a file it cannot write."""
    from profiler.scripts.report import Asked
    from profiler.views.export.files import refuse_output

    refuse_output(output, force=force, kinds=[".json"], hint=A_PLAN_ALONE)
    gpus = gpus_of(device, memory=None, context=context)
    if len(gpus) > 1:
        raise UserError(f"--device '{device}': a command is made to fit one kind of GPU", hint="--device t4")
    return Asked(words=tuple(SCRIPT.get()), gpus=gpus[0], steps=steps, batches=batches)


def _words(given: dict[str, object]) -> list[str]:
    return [word for flag, value in given.items() if value is not None for word in (flag, str(value))]


def _print(fitted: Fitted, *, source: str | None = None) -> None:
    """Print a row for each way; `source` says how CUDA's context is known, None if it is not part of what must fit."""
    from profiler.core import gpu_specs
    from profiler.scripts.report import estimate_caveat
    from profiler.views.tables import fit as view

    whole, chosen = fitted.ways[0], fitted.chosen
    context_bytes = whole.variant.context_bytes if source else 0
    taken = f"; {view.context_text(context_bytes, source)}" if source and context_bytes else ""
    allocated = "" if source else ", of allocated memory"
    number = f"rehearsed: the whole command, {count_text(fitted.num_rehearsed, 'time')}"
    below = [f"to fit: {bytes_text(fitted.limit_bytes)}{allocated}{taken}", number]
    below += view.left_out_lines(fitted.left_out)
    if chosen is whole:
        below.append("it fits as it is")
    elif chosen is None:
        least = fitted.least
        missing = bytes_text((least.needed_bytes or 0) - fitted.limit_bytes)
        below.append(f"nothing fits: the least is {least.label}, which needs {missing} more")
        below += [view.need_text(least.variant), *_of_batch(SCRIPT.get())] if source else []
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


def _of_batch(words: Sequence[str]) -> list[str]:
    """Return what says that the script's own batch can be smaller, by its own option if one is named like that."""
    named = next((word.partition("=")[0] for word in words if BATCH in word.lower() and not word.endswith(".py")), None)
    how = f"by {named}" if named else "by its own option, if it has one"
    return [
        f"micro-batches: only the script itself can split its batch: a smaller one {how}, and accumulated gradients"
    ]


def _say_document(fitted: Fitted) -> None:
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


def _say_plan(fitted: Fitted) -> None:
    """Print what `plan --json` prints."""
    whole, chosen = fitted.ways[0], fitted.chosen
    made = chosen if chosen and chosen.plan else None
    fields = {
        "schema": SCHEMA, "exit_code": fitted.exit_code, "budget_bytes": fitted.limit_bytes,
        "fits_as_it_is": chosen is whole, "why": None if chosen else "; ".join(fitted.left_out.values()),
        "module": fitted.module, "plan": made and made.plan, "whole": whole.variant, "planned": made and made.variant,
    }  # fmt: skip
    say_json(fields)
