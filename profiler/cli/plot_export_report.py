"""gcprof plot, export and report: a run as pictures, as files for other programs, and as a page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profiler.cli import options, script_folder
from profiler.cli.output import aside, next_command, one_of, read_run, say_bytes
from profiler.core.errors import UserError, refuse_idle
from profiler.core.units import count_text

if TYPE_CHECKING:
    from profiler.runs.store import Run

PHASES = "phases"  # the picture of a script


def plot(
    run: options.RunName = "last",
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help="frontier, memory, time, samples; over axes: heat, growth, throughput; of a script: phases. "
            "[default: frontier, or phases]",
            autocompletion=options.propose_plots,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="The file to write: png, svg or pdf. [default: KIND.png, for a paper .pdf]"
        ),
    ] = None,
    over: Annotated[
        str | None, typer.Option(help="Axes of heat (two) or growth (one): batch_size,depth. [default: chosen]")
    ] = None,
    style: Annotated[str, typer.Option(help="slides: 16:9, larger type; paper: one column.")] = "default",
    force: options.ForceIfThere = False,
) -> None:
    """Draw a run.

    frontier: peak memory against step time. memory: what the peak is made of. time: what the step takes.
    samples: every time sample. heat: the peak over two axes. growth: how it grows along one.
    throughput: samples a second at equal memory. phases: the memory of a script by phase.

    Example: gcprof plot last --kind memory -o memory.png
    """
    from profiler import views
    from profiler.analysis.rows import rows
    from profiler.core.errors import load_module

    if kind is not None:
        one_of(kind, [*views.PLOTS, PHASES], flag="--kind")
    loaded = read_run(run)
    variants = script_folder.variants_of(loaded)
    kind = kind or (PHASES if variants else "frontier")
    if variants and kind != PHASES:
        raise UserError(f"--kind {kind} is not for the run of a script", hint="--kind phases draws its memory by phase")
    if kind == PHASES and not variants:
        raise UserError("--kind phases is for the run of a script", hint="--kind memory shows what holds the peak")
    if variants:
        refuse_idle({"--over": over}, "on a script's run", hint="every variant is drawn; leave it out")

    # only once there is something to draw
    draw = load_module(f"profiler.views.plots.{'bars' if variants else 'plot'}", needs="matplotlib")

    from profiler.views.plots.theme import STYLES

    chosen = STYLES[one_of(style, STYLES, flag="--style")]
    path = output or Path(f"{kind}.{chosen.suffix}")
    if variants:
        draw.script_bars(variants, path=path, force=force, style=chosen)
    else:
        axes = over.split(",") if over else ()
        draw.plot(rows(loaded.records), kind=kind, path=path, force=force, style=chosen, over=axes)
    aside(f"wrote {path}")
    next_command("gcprof", "export", run, "--to", "csv", "-o", "table.csv")


def export(
    run: options.RunName = "last",
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="csv, parquet, json, md, latex; or tensorboard, wandb, mlflow.",
            autocompletion=options.propose_exports,
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
    from profiler.core.errors import load_function
    from profiler.integrations import trackers
    from profiler.runs import REFERENCE
    from profiler.views.export.files import write_whole

    kind = one_of(to, [*views.EXPORTS, *trackers.TRACKERS], flag="--to")
    is_file = kind in views.EXPORTS
    if not is_file:
        refuse_idle({"--force": force}, f"with --to {kind}", hint="leave it out")
    elif output is None:
        refuse_idle({"--force": force}, "on stdout", hint="name a file with -o")
    if kind == "parquet" and output is None and sys.stdout.isatty():
        raise UserError("a parquet file is not for a terminal", hint="name a file with -o")
    if not is_file and output is None and run.startswith(REFERENCE):
        raise UserError(f"'{run}' ships with gcprof and is read-only", hint="name a folder with -o")
    loaded = read_run(run)
    is_script = script_folder.variants_of(loaded) is not None
    if not is_file:
        if is_script:
            raise UserError(f"--to {kind} is not for the run of a script", hint="--to csv has one row a phase")
        _write_to_tracker(loaded, kind, output)
        return
    text: bytes = load_function(views.EXPORTS[kind])(loaded)
    if output is None:
        say_bytes(text)
        return
    aside(f"wrote {write_whole(output, text, force=force)}")
    shown = PHASES if is_script else "frontier"
    next_command("gcprof", "plot", run, "--kind", shown, "-o", f"{shown}.png")


def _write_to_tracker(loaded: Run, kind: str, folder: Path | None) -> None:
    from profiler.core.errors import load_function
    from profiler.integrations import trackers
    from profiler.runs.store import refuse_link, unwritable

    if folder is None:
        for path in (loaded.folder / "derived", loaded.folder / "derived" / kind):
            refuse_link(path)
    try:
        written = load_function(trackers.TRACKERS[kind])(loaded, folder)
    except OSError as error:
        raise unwritable(folder or loaded.folder, error) from error
    already = f"; {count_text(written.num_known, 'row')} there already" if written.num_known else ""
    aside(f"wrote {count_text(written.num_rows, 'row')} to {written.place}{already}")
    if written.next:
        next_command(*written.next)


def report(
    runs: Annotated[list[str] | None, typer.Argument(help=f"{options.RUN_HELP} [default: last]", metavar="run")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")] = Path("report.html"),
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    redact: Annotated[
        str,
        typer.Option(
            help="default hides folders and device numbers; all also names, options and commands; none hides nothing."
        ),
    ] = "default",
    force: options.ForceIfThere = False,
) -> None:
    """Write runs as one page for a browser. It needs no network, and shows what to do, the frontier and every number.

    Example: gcprof report last -o report.html --open
    """
    import webbrowser

    from profiler.core.errors import load_module
    from profiler.views.export.files import refuse_output, write_whole

    page = load_module("profiler.views.report", needs="jinja2")

    from profiler.views.redaction import LEVELS

    words = runs or ["last"]
    level = one_of(redact, LEVELS, flag="--redact")
    refuse_output(output, force=force)
    loaded = [read_run(word) for word in words]
    of_scripts = [script_folder.variants_of(run) is not None for run in loaded]  # each is checked
    if any(of_scripts) and not all(of_scripts):
        raise UserError("runs of scripts and of models are on pages of their own", hint="name them one by one")
    render = page.render_scripts if any(of_scripts) else page.render
    aside(f"wrote {write_whole(output, render(loaded, redact=level), force=force)}")
    if open_it and not webbrowser.open(output.resolve().as_uri()):
        aside(f"note: there is no browser to open it with; open {output} yourself")
    if len(words) > 1:
        next_command("gcprof", "compare", *words)
    else:
        next_command("gcprof", "export", words[0], "--to", "csv", "-o", "table.csv")
