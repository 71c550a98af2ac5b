"""gcprof show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from profiler.cli import options, script_folder
from profiler.cli.output import (
    aside,
    next_command,
    one_of,
    read_run,
    say,
    say_bytes,
    shard_text,
)
from profiler.core.errors import refuse_idle

if TYPE_CHECKING:
    from profiler.runs.store import Run


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
    variants = None if json else script_folder.variants_of(loaded)
    if json:
        from profiler.views.export.json import render

        say_bytes(render(loaded))
    elif is_markdown:
        from profiler.views.export.markdown import run_block

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
    from profiler.views.tables import pivot
    from profiler.views.tables import samples as sampled
    from profiler.views.tables.columns import groups, main
    from profiler.views.tables.grid import MOST_STYLED

    table = rows(loaded.records, largest=None if samples or over else MOST_STYLED)
    if over and table:
        shown = pivot.tables(table, over=over.split(","))
    else:
        shown = (sampled.samples if samples else main)(table)
    say(*shown, *(found for group in groups(table) for found in sampled.ranks(group)), columns=columns)
    plan = loaded.manifest.plan
    if owed := len(progress.owed(plan, loaded.records)):
        aside(f"partial: {owed} of {len(plan)} trials are still to run: gcprof run --resume {word}")
    if loaded.manifest.shard:
        aside(shard_text(loaded))
    if over:
        next_command("gcprof", "plot", word, "--kind", "heat", "--over", over, "-o", "heat.png")
    elif any(row.readings.peak_bytes is not None and row.outcome == "ok" for row in table):
        next_command("gcprof", "plot", word, "--kind", "memory", "-o", "memory.png")
