"""gcprof report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from profiler.cli import options
from profiler.cli.options import RUN_HELP
from profiler.cli.output import aside, next_command, one_of


def report(
    runs: Annotated[list[str] | None, typer.Argument(help=f"{RUN_HELP} [default: last]", metavar="run")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")] = Path("report.html"),
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    redact: Annotated[
        str, typer.Option(help="default hides folders and device numbers; all also names, options and commands; none.")
    ] = "default",
    force: options.ForceIfThere = False,
) -> None:
    """Write runs as one page for a browser. It needs no network, and shows what to do, the frontier and every number.

    Example: gcprof report last -o report.html --open
    """
    from profiler.core import optional_deps
    from profiler.runs.find import run_folder
    from profiler.runs.store import load
    from profiler.views.export.files import refuse_existing_file, write_whole

    render = optional_deps.load("profiler.views.report", needs="jinja2").render

    from profiler.views.redaction import LEVELS

    words = runs or ["last"]
    level = one_of(redact, LEVELS, flag="--redact")
    refuse_existing_file(output, force=force)
    loaded = [load(run_folder(word)) for word in words]
    for warning in (warning for run in loaded for warning in run.warnings):
        aside(f"warning: {warning}")
    aside(f"wrote {write_whole(output, render(loaded, redact=level), force=force)}")
    if open_it:
        _open(output)
    if len(words) > 1:
        next_command("gcprof", "compare", *words)
    else:
        next_command("gcprof", "export", words[0], "--to", "csv", "-o", "table.csv")


def _open(path: Path) -> None:
    import webbrowser

    if not webbrowser.open(path.resolve().as_uri()):
        aside(f"note: there is no browser to open it with; open {path} yourself")
