"""gcprof reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profiler.cli.output import COMMAND, Terminal, aside, encoding, next_command, say, say_bytes, width
from profiler.cli.signals import heeded
from profiler.core.errors import UserError
from profiler.runs import RESULTS
from profiler.workflows import Interrupted

if TYPE_CHECKING:
    from profiler.analysis.reproduction import Reproduction
    from profiler.runs.store import Run
    from profiler.workflows.published import System


def reproduce(
    name: Annotated[str | None, typer.Argument(help="A published system; without it, all are listed.")] = None,
    full: Annotated[bool, typer.Option("--full", help="The published size also on a CPU.")] = False,
    predict: Annotated[
        bool, typer.Option("--predict", help="Run nothing: predict the published size, for a v100 or --device.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda or cuda:N; with --predict also t4, h100, ... [default: auto]")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The run folder; it must not exist yet.")
    ] = None,
    before: Annotated[
        list[str] | None, typer.Option("--from", help="Read this run instead of running; may be given again.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")] = False,
) -> None:
    """Run a published system, and show its figures beside ours.

    Full size on CUDA, reduced on a CPU. Example: gcprof reproduce three-policies
    """
    from profiler.workflows import published

    if name is None:
        if full or predict or device or output or before or json:
            raise UserError("reproduce needs a name for these options", hint=f"one of {', '.join(published.names())}")
        _list()
        return
    system = published.find(name)
    if before:
        if full or predict or device or output:
            flag = "--full" if full else "--predict" if predict else "--device" if device else "--output"
            raise UserError(f"{flag} has no effect with --from", hint="it runs nothing; leave one of them out")
        if json and len(before) > 1:
            raise UserError("--json prints one run", hint="give --from once")
        for word in before:
            _show_before(system, word, json=json)
        return
    if predict:
        if system.engine != "local":
            raise UserError(f"{name} cannot be predicted: a Trainer does its steps", hint="leave out --predict")
        device = f"fake:{(device or 'v100').removeprefix('fake:')}"
    try:
        with heeded():
            code = _run(system, full, device, output, json)
    except Interrupted as interrupted:
        code = interrupted.exit_code
    raise typer.Exit(code)


def _list() -> None:
    from profiler.views.tables.columns import Column
    from profiler.views.tables.terminal import fitted
    from profiler.workflows import published

    found = [published.find(name) for name in published.names()]
    columns = (
        Column(head=("name", ""), cells=tuple(one.name for one in found)),
        Column(head=("what is published", ""), cells=tuple(one.title for one in found)),
    )
    say(fitted(columns, width=width(), encoding=encoding()))
    next_command("gcprof", "reproduce", found[0].name)


def _run(system: System, full: bool, device: str | None, output: Path | None, json: bool) -> int:
    import msgspec

    from profiler import engines
    from profiler.analysis import progress
    from profiler.core import catalogue, code_digests
    from profiler.core.case import FAKE, Choice
    from profiler.request import device_choice, spec
    from profiler.runs import store
    from profiler.views.export.files import write_whole
    from profiler.views.tables import reproduction
    from profiler.workflows import published, runner
    from profiler.workflows.run import opening
    from profiler.workflows.typed import command_line

    if output is not None and output.exists():
        raise UserError(f"'{output}' is there already", hint="name a new folder with -o")
    connect, _ = catalogue.load(Choice(system.engine), engines.TABLE)
    with connect() as engine:
        devices = engine.survey()
        where = device_choice.choose_device(device or "auto", list(devices))
        size = system.size_on(where, full=full)
        rounds = None if where.startswith(FAKE) else size.request.rounds
        rounds = 1 if where in device_choice.hollow(devices) else rounds
        plan = spec.plan(msgspec.structs.replace(size.request, device=where, rounds=rounds), lambda word: word)
        folder = output or store.new_folder(RESULTS, [system.name])
        store.create(
            folder,
            plan=plan.trials,
            command=command_line(COMMAND.get()),
            environment=device_choice.environment(where, devices),
            sources=code_digests.digests(trial.case for trial in plan.trials),
        )
        for line in opening(plan.trials, devices, (f"reduced: {size.reduced}",) if size.reduced else ()):
            aside(line)
        code = runner.follow(engine, folder, Terminal())
    run = store.load(folder)
    code = code or progress.exit_code(run.records)
    found = published.beside(system, size, run)
    _print(found, run, json=json, code=code)
    path = write_whole(folder / "derived" / "reproduction.md", reproduction.markdown(found).encode(), force=True)
    aside(f"wrote {path}")
    if system.engine == "local" and progress.owed(run.manifest.plan, run.records):
        next_command("gcprof", "run", "--resume", str(folder))
    else:
        next_command("gcprof", "show", str(folder))
    return code


def _show_before(system: System, word: str, *, json: bool) -> None:
    from profiler.analysis import progress
    from profiler.runs import store
    from profiler.runs.find import run_folder
    from profiler.workflows import published

    run = store.load(run_folder(word))
    for warning in run.warnings:
        aside(f"warning: {warning}")
    size = system.size_of({trial.case for trial in run.manifest.plan})
    if size is None or not published.ran_by(system.engine, run):
        hint = f"gcprof reproduce {system.name} makes one"
        raise UserError(f"'{word}' is no run of {system.name}", hint=hint, exit_code=4)
    found = published.beside(system, size, run)
    _print(found, run, json=json, code=progress.exit_code(run.records))


def _print(found: Reproduction, run: Run, *, json: bool, code: int) -> None:
    from profiler.views.tables import reproduction

    if json:
        say_bytes(reproduction.document(found, run=run.folder.name, exit_code=code))
    else:
        say(reproduction.table(found, width=width(), encoding=encoding()))
