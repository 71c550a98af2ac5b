"""gcprof plan --budget SIZE -- COMMAND: a plan for the model that a user's command trains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profiler.cli import options
from profiler.cli.output import SCRIPT, aside, next_command, one_of, say, say_bytes, say_json, write_plan
from profiler.cli.plan import CODE, DEEPEST
from profiler.cli.script import A_PLAN_ALONE, Batches, gpus_of
from profiler.core.errors import CODE_ALONE, UserError, refuse_idle

if TYPE_CHECKING:
    from profiler.workflows.plan_command import CommandPlan

SCHEMA = 1


def plan(
    budget: Annotated[
        str | None, typer.Option(help="Of allocated memory: 11GiB; 60% of the peak of the command as it is.")
    ] = None,
    device: Annotated[str, typer.Option(help="GPU to rehearse it on: t4, h100:8 (eight).")] = "h100",
    levels: Annotated[
        int | None,
        typer.Option(min=1, max=DEEPEST, help="Depth of checkpoints within checkpoints. [default: 1, more if needed]"),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="End after so many optimizer steps.")] = None,
    batches: Batches = None,
    emit: Annotated[str | None, typer.Option(help="Print code to paste: python, hf or fsdp.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="plan.json for the plan.")] = None,
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the fastest plan under which a training command fits a memory budget: its whole peak, as rehearsed.

    Example: gcprof plan --budget 11GiB --device t4 -o plan.json -- python train.py --batch-size 64
    """
    from profiler.scripts.launch import Asked
    from profiler.views.tables import script as view
    from profiler.workflows import plan_command

    if emit is not None:
        one_of(emit, CODE, flag="--emit")
    if budget is None:
        raise UserError("plan needs a budget", hint="--budget 11GiB, or --budget 60% of the command's own peak")
    plan_command.check(budget)
    _refuse_output(output, emit=emit, is_json=json, force=force)
    gpus = gpus_of(device, memory=None, context=None)
    if len(gpus) > 1:
        raise UserError(f"--device '{device}': a plan is for one kind of GPU", hint="--device t4")
    asked = Asked(words=tuple(SCRIPT.get()), gpus=gpus[0], steps=steps, batches=batches)
    found = plan_command.plan(asked, budget, levels=levels, say=(lambda text: None) if quiet else aside)
    if json:
        say_json(_document(found))
    elif emit is None:
        variants = [found.whole, *([found.planned] if found.planned else [])]
        say(view.summary(variants))
    elif found.plan is not None:
        from profiler.planning.plan_code import emit as code

        say_bytes(code(found.plan, emit).encode())
    given = {"--device": device, "--steps": steps, "--batches": batches}
    again = [word for flag, value in given.items() if value is not None for word in (flag, str(value))]
    deep = ["--levels", str(levels)] if levels else []
    _conclude(found, output=output, force=force, has_code=emit is not None, again=again, deep=deep)
    raise typer.Exit(found.exit_code)


def _refuse_output(output: Path | None, *, emit: str | None, is_json: bool, force: bool) -> None:
    """Raise UserError for a file that cannot be written, or that would have no effect, before the command runs."""
    from profiler.views.export.files import refuse_output

    if emit is not None:
        refuse_idle({"-o": output is not None, "--json": is_json}, "with --emit", hint=CODE_ALONE)
    refuse_output(output, force=force, kinds=[".json"], hint=A_PLAN_ALONE)


def _conclude(
    found: CommandPlan, *, output: Path | None, force: bool, has_code: bool, again: list[str], deep: list[str]
) -> None:
    """Say what the plan is, or why there is none; write it, and print the next command."""
    from profiler.core import plan_file
    from profiler.core.units import bytes_text
    from profiler.workflows.plan_command import peak_bytes

    budget, script = bytes_text(found.budget_bytes), SCRIPT.get()
    whole = bytes_text(peak_bytes(found.whole))
    if found.whole.is_cut:
        aside("only what ran is known: --steps or --batches ended it early")
    if found.whole.sized_at:
        aside(f"sizes depend on values that are assumed, at {', '.join(found.whole.sized_at)}: so do these peaks")
    if found.fits:
        aside(f"it fits {budget} as it is: {whole} (rehearsed); there is nothing to plan")
    if found.why:
        aside(f"no plan fits {budget} (as it is, {whole}): {found.why}")
    if found.plan is None or found.planned is None:
        return
    planned, blocks = found.planned, plan_file.words(found.plan)
    aside(f"plan of the {len(found.plan.fingerprint)} blocks of {found.module}: {blocks} (in brackets: recomputed)")
    aside(
        f"the whole command under it takes {bytes_text(peak_bytes(planned))} at most, of {budget}; as it is, {whole} "
        f"(rehearsed; plans that were rehearsed: {found.num_tried})"
    )
    if output is not None:
        write_plan(found.plan, output, force=force)
        if any("#" in name for name in found.plan.fingerprint):  # calls, for which there is no code
            next_command("gcprof", "rehearse", *again, "--strategies", f"plan:file={output}", "--", *script)
        else:
            next_command("gcprof", "plan", "--from", str(output), "--emit", "python")
    elif not has_code:
        budget = str(found.budget_bytes)
        next_command("gcprof", "plan", "--budget", budget, *again, *deep, "-o", "plan.json", "--", *script)


def _document(found: CommandPlan) -> dict[str, object]:
    """Return what `--json` prints."""
    return {
        "schema": SCHEMA,
        "exit_code": found.exit_code,
        "budget_bytes": found.budget_bytes,
        "fits_as_it_is": found.fits,
        "why": found.why,
        "module": found.module,
        "plan": found.plan,
        "whole": found.whole,
        "planned": found.planned,
    }
