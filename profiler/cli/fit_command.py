"""gcprof fit --memory SIZE -- COMMAND: what makes a user's own training command fit a memory, levers and plans."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profiler.cli import options
from profiler.cli.output import SCRIPT, aside, next_command, say, say_bytes, write_plan
from profiler.cli.script import A_PLAN_ALONE, Batches, gpus_of
from profiler.core.errors import UserError
from profiler.core.units import bytes_text, count_text, parse_memory

if TYPE_CHECKING:
    from profiler.workflows.fit_command import Fitted

SCHEMA = 1
BATCH = "batch"  # is in the name of a script's own option for its batch


def fit(
    memory: Annotated[str, typer.Option(help="Memory of each GPU it must fit in: 11GiB, 11G, or 60% of it.")],
    context: Annotated[
        str | None, typer.Option(help="What CUDA's context and libraries take of it, 0 too. [default: 600MiB]")
    ] = None,
    device: Annotated[str, typer.Option(help="GPU to rehearse it on: t4, h100:8 (eight).")] = "h100",
    steps: Annotated[int | None, typer.Option(min=1, help="End after so many optimizer steps.")] = None,
    batches: Batches = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="plan.json for the plan, if there is one.")
    ] = None,
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find what makes a training command fit a memory, with every lever; each way is the whole command, rehearsed.

    It combines checkpoints, the loss in chunks, the optimizer's kernels, inputs in host memory, steps in the backward.

    Example: gcprof fit --memory 11GiB --device t4 -- python train.py --batch-size 64
    """
    from profiler.scripts.launch import Asked
    from profiler.views.export.files import refuse_output
    from profiler.workflows import fit_command

    limit = parse_memory(memory, flag="--memory")
    refuse_output(output, force=force, kinds=[".json"], hint=A_PLAN_ALONE)
    gpus = gpus_of(device, memory=None, context=context)
    if len(gpus) > 1:
        raise UserError(f"--device '{device}': a command is made to fit one kind of GPU", hint="--device t4")
    asked = Asked(words=tuple(SCRIPT.get()), gpus=gpus[0], steps=steps, batches=batches)
    fitted = fit_command.fit(asked, limit, (lambda text: None) if quiet else aside)
    if json:
        _say_document(fitted)
    else:
        _print(fitted, is_assumed=context is None)
    if output is not None and fitted.chosen and fitted.chosen.plan:
        write_plan(fitted.chosen.plan, output, force=force)
    given = {"--device": device, "--context": context, "--steps": steps, "--batches": batches}
    again = [word for flag, value in given.items() if value is not None for word in (flag, str(value))]
    if fitted.chosen and fitted.chosen is not fitted.ways[0]:
        script = ("--", *SCRIPT.get())
        if fitted.chosen.plan and output is None:
            next_command("gcprof", "fit", "--memory", memory, *again, "-o", "plan.json", *script)
        else:
            label = fitted.chosen.label.replace("plan", f"plan:file={output}", 1)
            next_command("gcprof", "rehearse", *again, "--strategies", f"none,{label}", *script)
    raise typer.Exit(fitted.exit_code)


def _print(fitted: Fitted, *, is_assumed: bool) -> None:
    from profiler.core import gpu_specs
    from profiler.scripts.report import estimate_caveat
    from profiler.views.tables import fit as view

    whole, chosen = fitted.ways[0], fitted.chosen
    context_bytes = whole.variant.context_bytes
    source = f"; {view.context_text(context_bytes, 'assumed' if is_assumed else 'as asked')}" if context_bytes else ""
    number = f"rehearsed: the whole command, {count_text(fitted.num_rehearsed, 'time')}"
    below = [f"to fit: {bytes_text(fitted.limit_bytes)}{source}", number]
    below += [f"left out: {lever}: {why}" for lever, why in fitted.left_out.items()]
    if chosen is whole:
        below.append("it fits as it is")
    elif chosen is None:
        least = fitted.least
        missing = bytes_text((least.needed_bytes or 0) - fitted.limit_bytes)
        below.append(f"nothing fits: the least is {least.label}, which needs {missing} more")
        below.append(view.need_text(least.variant))
        below += _of_batch(SCRIPT.get())
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


def _of_batch(words: tuple[str, ...]) -> list[str]:
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
