"""gcprof show, compare, plot, export and report: what reads a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from profiler.cli import options, script
from profiler.cli.output import aside, next_command, read_run, say, say_bytes, say_json, shard_text
from profiler.core.errors import UserError, one_of, refuse_idle
from profiler.core.units import change_range_text, change_text, count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from profiler.analysis.comparison import Judgement, RuleResult
    from profiler.runs.store import Run
    from profiler.scripts.records import Side
    from profiler.views.tables import Table

ALIGN = "model,strategy,batch_size,precision"
FORMATS = ("table", "md", "json", "csv")
NOTHING_OVER = "nothing is over the limits"


def show(
    run: options.RunName = "last",
    samples: Annotated[bool, typer.Option("--samples", help="Every raw time sample instead of the table.")] = False,
    over: Annotated[
        str | None, typer.Option(help="Two axes instead of the table: batch_size, or batch_size,precision.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The whole run as one JSON document.")] = False,
    format: Annotated[str, typer.Option("--format", help="table; or md, a block to paste into an issue.")] = "table",
    columns: options.Width = None,
) -> None:
    """Show a run: memory, time, equality of gradients.

    Example: gcprof show last
    """
    from profiler.views.tables.columns import UNSHOWN

    is_markdown = one_of(format, ("table", "md"), flag="--format") == "md"
    asked = {"--samples": samples, "--over": over, "--width": columns}
    if json:
        refuse_idle({**asked, "--format": is_markdown}, "with --json")
    if is_markdown:
        refuse_idle(asked, "with --format md")
    if samples:
        refuse_idle({"--over": over}, "with --samples")
    is_table = not (json or samples or over or is_markdown)
    loaded = read_run(run, without=UNSHOWN if is_table else ())
    variants = None if json else script.variants_of(loaded)
    if json:
        from profiler.views.export import render_json

        say_bytes(render_json(loaded))
    elif is_markdown:
        from profiler.views.export import run_block

        say_bytes(run_block(loaded).encode())
    elif variants is not None:
        from profiler.views.tables.script import tables

        refuse_idle({"--samples": samples, "--over": over}, "on the run of a script")
        say(*tables(variants), columns=columns)
        if loaded.status == "partial":
            aside("partial: the command was ended from outside")
        next_command("gcprof", "explain", run)
    else:
        _show_rows(loaded, run, samples=samples, over=over, columns=columns)


def _show_rows(loaded: Run, word: str, *, samples: bool, over: str | None, columns: int | None) -> None:
    from profiler.analysis import progress
    from profiler.analysis.rows import rows
    from profiler.views.tables import MOST_STYLED, details
    from profiler.views.tables.columns import groups, main

    table = rows(loaded.records, largest=None if samples or over else MOST_STYLED)
    if over and table:
        shown = details.over_axes(table, over=over.split(","))
    else:
        shown = (details.samples if samples else main)(table)
    say(*shown, *(found for group in groups(table) for found in details.ranks(group)), columns=columns)
    plan = loaded.manifest.plan
    if owed := len(progress.owed(plan, loaded.records)):
        aside(f"partial: {owed} of {len(plan)} trials are still to run: gcprof run --resume {word}")
    if loaded.manifest.shard:
        aside(shard_text(loaded))
    if over:
        next_command("gcprof", "plot", word, "--kind", "heat", "--over", over, "-o", "heat.png")
    elif any(row.readings.peak_bytes is not None and row.outcome == "ok" for row in table):
        next_command("gcprof", "plot", word, "--kind", "memory", "-o", "memory.png")


def compare(
    runs: Annotated[list[str], typer.Argument(help=f"{options.RUN_HELP} The first is the baseline.", metavar="run")],
    baseline: Annotated[str | None, typer.Option("--baseline", help="The run to compare the others with.")] = None,
    align: Annotated[str, typer.Option("--align", help="What rows must share to be compared.")] = ALIGN,
    allow_different: Annotated[
        str | None, typer.Option("--allow-different", help="What may differ: torch, batch_size, optimizer, seed, ...")
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on", help="Exit with 5 if a row exceeds a limit: 'peak:>2%,time:>5%'; of scripts peak, reserved."
        ),
    ] = None,
    format: Annotated[str, typer.Option("--format", help="table, md, json or csv.")] = "table",
    columns: options.Width = None,
) -> None:
    """Compare runs: their settings, peaks and times. It also says which strategy each device should use.

    Example: gcprof compare ref:predicted-t4/transformer ref:predicted-h100/transformer
    """
    from profiler.analysis.comparison import compare_sides, judge, parse_rules
    from profiler.analysis.pairing import ALLOWED, MEANING, read_sides
    from profiler.runs import REFERENCE
    from profiler.views.tables import comparison as view

    if one_of(format, FORMATS, flag="--format") != "table":
        refuse_idle({"--width": columns}, f"with --format {format}")
    words = runs if baseline is None else [baseline, *(word for word in runs if word != baseline)]
    loaded = [(word, read_run(word)) for word in words]
    if scripts := script.compared_scripts(loaded):
        hint = "phases are paired by strategy, -L, rank and phase; leave it out"
        refuse_idle({"--align": align != ALIGN, "--allow-different": allow_different}, "on scripts", hint=hint)
        raise typer.Exit(_compare_scripts(scripts, fail_on=fail_on, format=format, columns=columns))
    rules = parse_rules(fail_on) if fail_on is not None else ()
    allowed = _listed(allow_different, ALLOWED, flag="--allow-different") if allow_different else []
    names = [name for name in _listed(align, MEANING, flag="--align") if name not in allowed]
    called = [word if word.startswith(REFERENCE) else run.folder.resolve().name for word, run in loaded]
    named = [  # the word where two have the same name
        (name if called.count(name) == 1 else word, run.records)
        for name, (word, run) in zip(called, loaded, strict=True)
    ]
    sides = read_sides(named, align=names)
    compared = compare_sides(sides, align=names, allowed=allowed)
    judgement = judge(sides, rules, align=names, allowed=allowed) if rules else None
    code = script.TRIPPED if judgement and judgement.tripped else 0
    document = {"schema": view.SCHEMA, "exit_code": code, "comparison": compared, "gate": judgement}
    _say(view.tables(compared), document, lambda: view.csv(compared), format=format, columns=columns)
    if judgement:
        _tell(judgement)
    elif format == "table":
        next_command("gcprof", "compare", *words, "--format", "md")
    raise typer.Exit(code)


def _compare_scripts(sides: Sequence[Side], *, fail_on: str | None, format: str, columns: int | None) -> int:
    """Print scripts beside each other; return the exit code."""
    from profiler.scripts import records
    from profiler.views.tables import comparison as view

    limits = records.parse_limits(fail_on, is_change=True) if fail_on is not None else ()
    if len(sides) < 2:
        raise UserError("a script's run is compared with another one", hint="gcprof compare RUN RUN")
    compared = records.compare(sides)
    texts = records.tripped(compared, limits)
    code = script.TRIPPED if texts else 0
    facts = {"comparisons": view.script_document(compared), "gate": texts if limits else None}
    document = {"schema": view.SCHEMA, "exit_code": code, **facts}
    _say(view.script_tables(compared), document, lambda: view.script_csv(compared), format=format, columns=columns)
    for line in texts or ([NOTHING_OVER] if limits else []):
        aside(f"gate: {line}")
    return code


def _say(tables: Sequence[Table], document: Any, csv: Callable[[], str], *, format: str, columns: int | None) -> None:
    from profiler.views.export import markdown

    if format == "table":
        say(*tables, columns=columns)
    elif format == "json":
        say_json(document)
    else:
        say_bytes((markdown(tables) if format == "md" else csv()).encode())


def _listed(text: str, choices: tuple[str, ...], *, flag: str) -> list[str]:
    return [one_of(word.strip(), choices, flag=flag) for word in text.split(",")]


def _tell(judgement: Judgement) -> None:
    for result in judgement.tripped:
        aside(f"gate: {_rule_text(result)}")
    for remark in judgement.remarks:
        aside(f"note: {remark}")
    for result in judgement.unsure:
        aside(f"unsure: {_rule_text(result)}: too noisy to tell; more --rounds and --samples would")
    if not judgement.tripped:
        aside(f"gate: {NOTHING_OVER}")


def _rule_text(result: RuleResult) -> str:
    contrast = result.contrast
    if contrast is None:
        finding = result.reason
    else:
        interval = (contrast.low, contrast.high) if contrast.low is not None and contrast.high is not None else None
        finding = change_text(contrast.ratio) + (f" ({change_range_text(interval)})" if interval else "")
    kinds = " ({}, against {})".format(*result.evidence) if result.evidence else ""
    where = f"{result.label} against {result.against}"
    return f"{result.rule}: {', '.join(result.key.values())} in {where}{kinds}: {finding}"


PHASES, FRONTIER = "phases", "frontier"  # the pictures of a script


def plot(
    run: options.RunName = "last",
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help="frontier, memory, time, samples; over axes: heat, growth, throughput; of a script: frontier, phases. "
            "[default: frontier, or phases]",
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

    one_of(kind, [*views.PLOTS, PHASES], flag="--kind")
    loaded = read_run(run)
    variants = script.variants_of(loaded)
    kind = kind or (PHASES if variants else FRONTIER)
    if variants and kind not in (PHASES, FRONTIER):
        raise UserError(f"--kind {kind} is not for the run of a script", hint="--kind phases draws its memory by phase")
    if kind == PHASES and not variants:
        raise UserError("--kind phases is for the run of a script", hint="--kind memory shows what holds the peak")
    if variants:
        refuse_idle({"--over": over}, "on a script's run", hint="every variant is drawn; leave it out")

    # only once there is something to draw
    of_script = {PHASES: ".steps", FRONTIER: ".frontier"}[kind] if variants else ""
    draw = load_module(f"profiler.views.plots{of_script}", needs="matplotlib")

    from profiler.views.plots.theme import STYLES

    chosen = STYLES[one_of(style, STYLES, flag="--style")]
    path = output or Path(f"{kind}.{chosen.suffix}")
    if variants:
        (draw.script_phases if kind == PHASES else draw.script_frontier)(variants, path=path, force=force, style=chosen)
    else:
        axes = over.split(",") if over else ()
        draw.plot(rows(loaded.records), kind=kind, path=path, force=force, style=chosen, over=axes)
    aside(f"wrote {path}")
    next_command("gcprof", "export", run, "--to", "csv", "-o", "table.csv")


def export(
    run: options.RunName = "last",
    to: Annotated[
        str, typer.Option("--to", help="csv, parquet, json, md, latex; or tensorboard, wandb, mlflow.")
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
    from profiler.runs import REFERENCE
    from profiler.views import trackers
    from profiler.views.export import write_whole

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
    is_script = script.variants_of(loaded) is not None
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
    from profiler.runs.store import refuse_link, unwritable
    from profiler.views import trackers

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
    from profiler.views.export import refuse_output, write_whole

    page = load_module("profiler.views.report", needs="jinja2")

    from profiler.views.sanitize import LEVELS

    words = runs or ["last"]
    level = one_of(redact, LEVELS, flag="--redact")
    refuse_output(output, force=force)
    loaded = [read_run(word) for word in words]
    of_scripts = [script.variants_of(run) is not None for run in loaded]  # each is checked
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
