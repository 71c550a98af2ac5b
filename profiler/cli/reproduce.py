"""gcprof reproduce."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from profiler.cli import options
from profiler.cli.output import COMMAND, Terminal, aside, interruptible, next_command, say, say_bytes
from profiler.core.errors import UserError, refuse_idle

if TYPE_CHECKING:
    from profiler.workflows.reproduce import Reproduced, System


def reproduce(
    name: Annotated[str | None, typer.Argument(help="A published system; without it, all are listed.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Run the published size on a CPU too.")] = False,
    predict: Annotated[
        bool, typer.Option("--predict", help="Run nothing: predict the published size, for a v100 or --device.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda or cuda:N; with --predict also t4, h100, ... [default: auto]")
    ] = None,
    output: options.RunFolder = None,
    before: Annotated[
        list[str] | None, typer.Option("--from", help="Read this run instead of running; may be repeated.")
    ] = None,
    json: options.JsonOrTable = False,
) -> None:
    """Run a published system, and show its figures beside ours.

    It has its full size on CUDA, and is reduced on a CPU.

    Example: gcprof reproduce three-policies
    """
    from profiler.core.gpu_specs import to_predict
    from profiler.workflows import reproduce as workflow

    if name is None:
        if any((full, predict, device, output, before, json)):
            raise UserError("reproduce needs a name for these options", hint=f"one of {', '.join(workflow.names())}")
        _list([workflow.find(name) for name in workflow.names()])
        return
    system = workflow.find(name)
    if before:
        given = {"--full": full, "--predict": predict, "--device": device, "--output": output}
        refuse_idle(given, "with --from", hint="it runs nothing; leave one of them out")
        if json and len(before) > 1:
            raise UserError("--json prints one run", hint="give --from once")
        for word in before:
            _print(workflow.read(system, word, Terminal()), json=json)
        return
    if predict:
        if system.engine != "local":
            raise UserError(f"{name} cannot be predicted: a Trainer does its steps", hint="leave out --predict")
        device = to_predict(device or "v100")
    with interruptible(json=json):
        reproduced = workflow.reproduce(
            system, Terminal(), full=full, device=device, output=output, typed=COMMAND.get()
        )
        _print(reproduced, json=json)
        raise typer.Exit(_keep(system, reproduced))


def _list(systems: list[System]) -> None:
    from profiler.views.tables.grid import Table, words

    columns = (
        words("name", "", [system.name for system in systems]),
        words("what is published", "", [system.title for system in systems]),
    )
    say(Table(columns=columns))
    next_command("gcprof", "reproduce", systems[0].name)


def _print(reproduced: Reproduced, *, json: bool) -> None:
    from profiler.views.tables import comparison

    figures = reproduced.reproduction
    if json:
        say_bytes(
            comparison.published_document(figures, run=reproduced.run.folder.name, exit_code=reproduced.exit_code)
        )
    else:
        say(comparison.published_table(figures))


def _keep(system: System, reproduced: Reproduced) -> int:
    """Write the table into the run's folder; return the exit code."""
    from profiler.views.export.files import write_whole
    from profiler.views.export.markdown import markdown
    from profiler.views.tables import comparison

    folder = reproduced.run.folder
    text = markdown([comparison.published_table(reproduced.reproduction)]).encode()
    aside(f"wrote {write_whole(folder / 'derived' / 'reproduction.md', text, force=True)}")
    is_partial = system.engine == "local" and reproduced.run.status == "partial"
    next_command("gcprof", *(("run", "--resume") if is_partial else ("show",)), str(folder))
    return reproduced.exit_code
