"""`gcprof run`: words in, a run folder, a table and its files out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profiler.cli.signals import Interrupted, end_at_once, heeded
from profiler.cli.words import (
    RESULTS,
    aside,
    command_line,
    encoding,
    next_command,
    run_folder,
    say,
    say_bytes,
    say_failure,
    say_first,
    width,
)
from profiler.errors import UserError

if TYPE_CHECKING:
    from profiler.engines import Engine
    from profiler.record import Environment
    from profiler.spec import Plan, Request
    from profiler.store import Run

LONGEST = 1_000_000  # seconds of a stage: eleven days


def run(
    model: Annotated[
        str | None, typer.Option(help="Models, as NAME:option=value,...; `gcprof models` lists them.")
    ] = None,
    segments: Annotated[str | None, typer.Option(help="Numbers of segments: 1,2,4 or 1..32 or 1..32:x2.")] = None,
    strategies: Annotated[str | None, typer.Option(help="Other strategies; `gcprof strategies` lists them.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd, momentum, adam or adamw. [default: sgd]")] = None,
    batch_size: Annotated[str | None, typer.Option(help="Samples a micro-batch. [default: the model's]")] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, bf16, fp16, amp-bf16, amp-fp16; several make an axis. [default: fp32]")
    ] = None,
    accumulate: Annotated[int | None, typer.Option(help="Micro-batches a step. [default: 1]")] = None,
    blocks: Annotated[
        str | None, typer.Option(help="The blocks by name, as 'model.layers.*'; `gcprof blocks` shows those found.")
    ] = None,
    repair_batchnorm: Annotated[
        bool | None, typer.Option("--repair-batchnorm", help="Set BatchNorm's momentum so that its statistics agree.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N. [default: auto]")] = None,
    data: Annotated[
        str | None, typer.Option(help="Folder with the MNIST IDX files; without it the batch is synthetic.")
    ] = None,
    verify: Annotated[
        str | None, typer.Option(help="Equality of gradients: auto, off, or strict (to the bit). [default: auto]")
    ] = None,
    keep_grads: Annotated[
        bool | None, typer.Option("--keep-grads", help="Zero gradients in place: they persist between steps.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds over all cases, each in fresh processes. [default: 3]")
    ] = None,
    samples: Annotated[int | None, typer.Option(help="Timed steps a round. [default: 5]")] = None,
    warmup: Annotated[int | None, typer.Option(help="Steps before them, after a first one. [default: 1]")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights and batch. [default: 0]")] = None,
    config: Annotated[Path | None, typer.Option(help="A sweep file (TOML); options given here win over it.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The run folder; it must not exist yet.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(help="Go on with this interrupted run: a folder, a name, or last.")
    ] = None,
    stage_limit: Annotated[float, typer.Option(help="Seconds that a stage of a trial may take.")] = 600.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cases, and run nothing.")] = False,
) -> None:
    """Measure memory and time of a model's training step under checkpointing strategies.

    Without a strategy or segments: segments 1,2,4,8,16,32 beside `none`. Without a model: mnist-cnn.

    Example: gcprof run --model mlp,mnist-cnn --segments 1..8
    """
    from profiler.spec import Request

    words = Request(
        model=model, segments=segments, strategies=strategies, optimizer=optimizer, batch_size=batch_size,
        device=device, data=data, verify=verify, keep_grads=keep_grads, rounds=rounds, samples=samples,
        warmup=warmup, seed=seed, precision=precision, accumulate=accumulate, blocks=blocks,
        repair_batchnorm=repair_batchnorm,
    )  # fmt: skip
    if not 0 < stage_limit <= LONGEST:
        raise UserError(f"--stage-limit cannot be {stage_limit:g}", hint=f"seconds, more than 0, up to {LONGEST:,}")
    if dry_run and json:
        raise UserError("--json has no effect with --dry-run", hint="it measures nothing; leave one of them out")
    if resume and (config or output or dry_run):
        flag = "--config" if config else "--output" if output else "--dry-run"
        raise UserError(f"{flag} has no effect with --resume", hint="a run goes on in its own folder, by its own plan")
    try:
        with heeded():
            code = (
                _resume(resume, words, stage_limit, json)
                if resume
                else _start(words, config, output, stage_limit, json, dry_run)
            )
    except Interrupted as interrupted:
        code = interrupted.exit_code  # before there was anything to keep
        if json:
            say_failure(code)
    raise typer.Exit(code)


def _start(words: Request, config: Path | None, output: Path | None, limit: float, json: bool, dry_run: bool) -> int:
    from profiler import catalogue, engines, spec, store, sweep
    from profiler.case import Choice

    request = spec.override(sweep.read(config), words) if config else words
    spec.plan(request, spec.any_device)  # refuse what is wrong before torch is imported, which takes seconds
    store.refuse_existing(output or RESULTS / "new")
    connect, _ = catalogue.load(Choice("local"), engines.TABLE)
    with connect(stage_seconds=limit) as engine:
        devices = engine.survey()
        plan = spec.plan(request, lambda word: spec.choose_device(word, list(devices)))
        if dry_run:
            return _print_plan(plan, devices)
        folder = output or store.new_folder(RESULTS, [str(trial.case.model) for trial in plan.trials])
        environment = devices[plan.trials[0].case.device]
        store.create(folder, plan=plan.trials, command=command_line(), environment=environment)
        return _go_on(engine, folder, plan.data_directory, devices, json, plan.remarks)


def _resume(name: str, words: Request, limit: float, json: bool) -> int:
    from profiler import catalogue, engines, runner, store
    from profiler.analysis import progress
    from profiler.case import Choice
    from profiler.spec import Request

    if words != Request(data=words.data):
        raise UserError(
            "--resume goes on with the run's own cases",
            hint="leave out the other options (--data names the files again)",
        )
    folder = run_folder(name)
    before = store.load(folder)
    from_files = any(trial.case.data == "files" for trial in before.manifest.plan)
    if from_files != (words.data is not None):
        message = "this run reads its batch from files" if from_files else "--data has no effect on this run"
        raise UserError(message, hint="name their folder with --data" if from_files else "its batch is not from files")
    if not progress.owed(before.manifest.plan, before.records):
        aside("there is nothing left to do: the run is complete")
        return _finish(before, code=0, json=json)
    connect, _ = catalogue.load(Choice("local"), engines.TABLE)
    with connect(stage_seconds=limit) as engine:
        devices = engine.survey()
        runner.refuse_other_machine(before.manifest.environment, devices.get(before.manifest.plan[0].case.device))
        return _go_on(engine, folder, words.data, devices, json, before.warnings)


def _go_on(
    engine: Engine,
    folder: Path,
    data: str | None,
    devices: dict[str, Environment],
    json: bool,
    remarks: tuple[str, ...],
) -> int:
    """Run what is owed, then show and write what there is, also after Ctrl-C."""
    from profiler import runner, store
    from profiler.views.progress import Follow

    say_first(store.load(folder).manifest.plan, devices, remarks)
    code = 0
    try:
        with Follow(sys.stderr) as follow:
            for record, left in runner.carry_out(engine, folder, data_directory=data):
                follow.show(record, left=left)
    except Interrupted as interrupted:
        aside("interrupted; what was printed is safe")
        code = interrupted.exit_code
    except UserError as error:  # it could not be written any further
        aside(f"gcprof: {error.message}")
        aside(f"hint: {error.hint}")
        code = error.exit_code
    end_at_once()
    return _finish(store.load(folder), code=code, json=json)


def _finish(run: Run, *, code: int, json: bool) -> int:
    """Show and write what there is, and name what to do next; the exit code."""
    from profiler.analysis import progress

    folder = run.folder
    code = code or progress.exit_code(run.records)
    _show(run, json=json, code=code)
    if progress.status(run.manifest.plan, run.records) == "partial":
        next_command("gcprof", "run", "--resume", str(folder))
    elif all(record.readings.peak_bytes is None for record in run.records):
        next_command("gcprof", "show", str(folder))
    else:
        next_command("gcprof", "plot", str(folder), "--kind", "memory", "-o", "memory.png")
    return code


def _print_plan(plan: Plan, devices: dict[str, Environment]) -> int:
    say_first(plan.trials, devices, plan.remarks)
    for trial in plan.trials:
        case = trial.case
        what = f"{case.model}  {case.strategy}  batch {case.batch_size}  {case.optimizer}  {case.device}"
        print(f"round {trial.round}  {what}  {'+'.join(trial.passes)}")
    aside(f"{len(plan.trials)} trials")
    return 0


def _show(run: Run, *, json: bool, code: int) -> None:
    """The table on stdout, or the document; then the files and what to try next."""
    from profiler.analysis import progress, rows
    from profiler.views import derived, terminal
    from profiler.views.json import document

    status = progress.status(run.manifest.plan, run.records)
    written = derived.write(run)
    if json:
        say_bytes(document(run.folder.name, run.records, status=status, exit_code=code))
    else:
        say(terminal.table(rows.rows(run.records), width=width(), encoding=encoding()))
    for path in (run.folder / "trials.jsonl", *written):
        aside(f"wrote {path}")
