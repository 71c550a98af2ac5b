"""gcprof run -- COMMAND: the user's own training command on the device that is here, with times and gradients."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from profiler.cli import options, script_folder
from profiler.cli.output import COLOR, SCRIPT, aside, one_of, paper, say_json
from profiler.cli.script import (
    NO_GPU,
    TIMED_OUT,
    Axes,
    Batches,
    FailOn,
    Module,
    document,
    filled,
    strategies_of,
    values_of,
)  # fmt: skip
from profiler.core.errors import UserError

if TYPE_CHECKING:
    from profiler.scripts.measured import Session
    from profiler.scripts.report import Variant

DEVICES = ("auto", "cpu", "cuda")


def run(
    device: Annotated[str, typer.Option(help="auto, cpu (no GPU is seen), or cuda.")] = "auto",
    axes: Axes = None,
    strategies: Annotated[
        str | None,
        typer.Option(
            help="Run it for each, beside none, which is the script as it is.",
            autocompletion=options.propose_strategies,
        ),
    ] = None,
    module: Module = None,
    steps: Annotated[int, typer.Option(min=2, help="End after so many optimizer steps.")] = 20,
    rounds: Annotated[
        int, typer.Option(min=0, help="Rounds over all strategies for their time, each in fresh processes.")
    ] = 3,
    batches: Batches = None,
    limit: Annotated[float | None, typer.Option(min=0.1, help="End each run after so many seconds.")] = None,
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Keep what it writes to files: that of the last run.")
    ] = False,
    fail_on: FailOn = None,
    output: options.RunFolder = None,
    json: options.JsonOrTable = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a training command as it is, on the device that is here: memory by phase, time and gradients by strategy.

    A word FILE.py without a colon begins the command too: gcprof run train.py --batch-size 64

    Example: gcprof run --strategies none,all -- python train.py --batch-size 64
    """
    from profiler.scripts import gates
    from profiler.scripts.launch import Asked
    from profiler.scripts.measured import Request, measure
    from profiler.views.tables import measured_script as view
    from profiler.views.tables.script import Live

    words, started = [*SCRIPT.get()], datetime.now(UTC)
    limits = gates.parse(fail_on) if fail_on is not None else ()
    script_folder.refuse(output)
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if one_of(device, DEVICES, flag="--device") == "cpu" else {}
    names = tuple(dict.fromkeys(("none", *(name for name in strategies_of(strategies) if name))))
    if module is not None and names == ("none",):
        raise UserError("--module has no effect without --strategies", hint="--strategies none,all --module 'GPT*'")
    say = aside if not quiet else lambda text: None
    sessions: list[Session] = []
    for values in values_of(axes or [], words):
        asked = Asked(
            words=tuple(filled(word, values) for word in words), steps=steps, batches=batches, limit_seconds=limit,
            module=module, allow_writes=allow_writes, variables=hidden,
        )  # fmt: skip
        request = Request(
            strategies=names, rounds=rounds, values=values, say=say, on_line=Live(say), stdout=2 if json else None
        )
        session = measure(asked, request)
        sessions.append(session)
        if not json:
            view.write(session.variants, file=sys.stdout, width=paper().width, color=COLOR.get())
        if not session.is_whole:
            break
    variants = [variant for session in sessions for variant in session.variants]
    code = _exit_code(sessions, wants_gpu=device == "cuda")
    folder = script_folder.keep(variants, output=output, started=started)
    code = script_folder.judge(variants, limits) or code
    if json:
        say_json(document(variants, code, folder=folder, is_ended=not sessions[-1].is_whole))
    if folder:
        script_folder.tell(folder)
    raise typer.Exit(code)


def _exit_code(sessions: list[Session], *, wants_gpu: bool) -> int:
    """Return the command's own code of a single variant; of several 1 if one failed, or has other gradients."""
    last = sessions[-1].last
    variants = [variant for session in sessions for variant in session.variants]
    if last.interrupted:
        return 128 + last.interrupted
    if last.timed_out:
        return TIMED_OUT
    untold = _untold(variants, wants_gpu=wants_gpu)
    if untold and not any(session.exit_code for session in sessions):
        aside(f"gcprof: {untold}, so nothing is known of its memory")
        return NO_GPU
    if len(variants) == 1 and variants[0].words["strategy"] == "none":
        return sessions[0].exit_code
    wrong = [variant for variant in variants if variant.outcome not in ("ok", "out_of_memory", "skipped")]
    return int(bool(wrong) or any(one.equality is not None and one.equality.verdict == "differ" for one in variants))


def _untold(variants: list[Variant], *, wants_gpu: bool) -> str | None:
    """Return why there is no table of a variant, if there is none."""
    if any(not variant.processes for variant in variants):
        return "no process of this command trained or called a module of torch"
    if wants_gpu and any(variant.gpu_bytes is None for variant in variants):
        return "no process of this command used a GPU"
    return None
