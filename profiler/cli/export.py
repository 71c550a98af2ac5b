"""gcprof export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profiler.cli import completion, options
from profiler.cli.output import aside, next_command, one_of, say_bytes

if TYPE_CHECKING:
    from profiler.runs.store import Run


def export(
    run: options.RunName = "last",
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="csv, parquet, json, md, latex; or tensorboard, wandb, mlflow.",
            autocompletion=completion.exports,
        ),
    ] = "csv",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file to write, or a tracker's folder. [default: stdout]")
    ] = None,
    force: options.ForceIfThere = False,
) -> None:
    """Export a run to a file or a tracker. Files: csv, parquet, json, md, latex. Trackers: tensorboard, wandb, mlflow.

    W&B stays offline unless WANDB_MODE says otherwise; MLflow writes to a local folder or to MLFLOW_TRACKING_URI.

    Example: gcprof export last --to csv -o table.csv
    """
    from profiler import views
    from profiler.core.errors import UserError
    from profiler.integrations import trackers
    from profiler.runs.find import REFERENCE, run_folder
    from profiler.runs.store import load

    kind = one_of(to, [*views.EXPORTS, *trackers.TRACKERS], flag="--to")
    if force and (output is None or kind in trackers.TRACKERS):
        where = "stdout" if kind in views.EXPORTS else f"--to {kind}"
        raise UserError(f"--force has no effect on {where}", hint="name a file with -o")
    if kind == "parquet" and output is None and sys.stdout.isatty():
        raise UserError("a parquet file is not for a terminal", hint="name a file with -o")
    if kind in trackers.TRACKERS and output is None and run.startswith(REFERENCE):
        raise UserError(f"'{run}' comes with gcprof and is not written to", hint="name a folder with -o")
    loaded = load(run_folder(run))
    for warning in loaded.warnings:
        aside(f"warning: {warning}")
    if kind in trackers.TRACKERS:
        _log(loaded, kind, output)
    else:
        _write(loaded, kind, output, force=force, run=run)


def _write(loaded: Run, kind: str, output: Path | None, *, force: bool, run: str) -> None:
    from profiler import views
    from profiler.core.optional_deps import load_function
    from profiler.views.export.files import write_whole

    text: bytes = load_function(views.EXPORTS[kind])(loaded)
    if output is None:
        say_bytes(text)
        return
    aside(f"wrote {write_whole(output, text, force=force)}")
    next_command("gcprof", "plot", run, "--kind", "frontier", "-o", "frontier.png")


def _log(loaded: Run, kind: str, folder: Path | None) -> None:
    from profiler.core.errors import UserError
    from profiler.core.optional_deps import load_function
    from profiler.core.units import count_text
    from profiler.integrations import trackers
    from profiler.runs.store import refuse_link

    if folder is None:
        for path in (loaded.folder / "derived", loaded.folder / "derived" / kind):
            refuse_link(path)
    try:
        written = load_function(trackers.TRACKERS[kind])(loaded, folder)
    except OSError as error:
        message = f"cannot write to '{folder or loaded.folder}': {error.strerror or error}"
        raise UserError(message, hint="name a folder you may write to with -o", exit_code=74) from error
    already = f"; {count_text(written.num_known, 'row')} there already" if written.num_known else ""
    aside(f"wrote {count_text(written.num_rows, 'row')} to {written.place}{already}")
    if written.next:
        next_command(*written.next)
