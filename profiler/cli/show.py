"""gcprof show."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from profiler.cli import options, script_folder
from profiler.cli.output import COLOR, aside, next_command, one_of, paper, say, say_bytes, shard_text
from profiler.core.errors import UserError

if TYPE_CHECKING:
    from profiler.analysis.rows import Row
    from profiler.runs.store import Run
    from profiler.views.tables.terminal import Printed


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
    from profiler.analysis import progress
    from profiler.analysis.rows import rows
    from profiler.runs.find import run_folder
    from profiler.runs.store import load
    from profiler.views.tables.columns import UNSHOWN
    from profiler.views.tables.grid import MOST_STYLED

    one_of(format, ("table", "md"), flag="--format")
    _refuse_without_effect(json=json, format=format, samples=samples, over=over, columns=columns)
    is_table = not (json or samples or over) and format == "table"
    loaded = load(run_folder(run), without=UNSHOWN if is_table else ())
    for warning in loaded.warnings:
        aside(f"warning: {warning}")
    if loaded.is_script and not json:
        _show_script(loaded, run, is_markdown=format == "md", samples=samples, over=over, columns=columns)
        return
    if json:
        from profiler.views.export.json import render

        say_bytes(render(loaded))
        return
    if format == "md":
        from profiler.views.export.markdown import run_block

        say_bytes(run_block(loaded).encode())
        return
    table = rows(loaded.records, largest=MOST_STYLED if is_table else None)
    if table:
        say(_view(samples, over)(table, paper=paper(columns)))
        _say_ranks(table, columns)
    if owed := len(progress.owed(loaded.manifest.plan, loaded.records)):
        aside(f"partial: {owed} of {len(loaded.manifest.plan)} trials are not there yet")
    if loaded.manifest.shard:
        aside(shard_text(loaded))
    if over:
        next_command("gcprof", "plot", run, "--kind", "heat", "--over", over, "-o", "heat.png")
    elif any(row.readings.peak_bytes is not None and row.outcome == "ok" for row in table):
        next_command("gcprof", "plot", run, "--kind", "memory", "-o", "memory.png")


def _show_script(
    loaded: Run, run: str, *, is_markdown: bool, samples: bool, over: str | None, columns: int | None
) -> None:
    """Print the phases of a script's run. Raises UserError for views of what a script does not have."""
    from profiler.views.export.script import markdown
    from profiler.views.redaction import redacted
    from profiler.views.tables.script import sentence, write

    for flag, is_given in {"--samples": samples, "--over": over is not None}.items():
        if is_given:
            raise UserError(f"{flag} is not for the run of a script", hint=f"gcprof show {run}; its phases are shown")
    variants = script_folder.variants_of(loaded) or ()
    if is_markdown:
        say_bytes(markdown(redacted([loaded], level="default")[0]))
        return
    for variant in variants:
        if not variant.processes:
            aside(sentence(variant))
        write(variant, file=sys.stdout, width=paper(columns).width, color=COLOR.get())
    if loaded.status == "partial":
        aside("partial: the command was ended from outside")
    next_command("gcprof", "explain", run)


def _say_ranks(table: Iterable[Row], columns: int | None) -> None:
    """Print the memory of each rank, by groups of rows that may be compared, if several ranks train together."""
    from profiler.views.tables import columns as cells
    from profiler.views.tables.samples import ranks

    for group in cells.groups(table):
        rank_table = ranks(group, paper=paper(columns))
        if rank_table:
            print()
            say(rank_table)


def _refuse_without_effect(*, json: bool, format: str, samples: bool, over: str | None, columns: int | None) -> None:
    asked = {
        "--format": format != "table",
        "--samples": samples,
        "--over": over is not None,
        "--width": columns is not None,
    }
    idle = [flag for flag, is_asked in asked.items() if is_asked]
    if json and idle:
        hint = "the document holds every sample; leave one of them out"
        raise UserError(f"{idle[0]} has no effect with --json", hint=hint)
    if format == "md" and len(idle) > 1:
        raise UserError(f"{idle[1]} has no effect with --format md", hint="leave one of them out")
    if samples and over:
        raise UserError("--over has no effect with --samples", hint="leave one of them out")


def _view(samples: bool, over: str | None) -> Callable[..., Printed]:
    """Return the function that renders the rows in the requested way."""
    from profiler.views.tables import pivot, terminal
    from profiler.views.tables.samples import samples as all_samples

    if over:
        return partial(pivot.table, over=over.split(","))
    return all_samples if samples else terminal.table
