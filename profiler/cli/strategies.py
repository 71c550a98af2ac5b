"""gcprof strategies."""

from __future__ import annotations

from typing import Annotated

import typer

from profiler.cli import completion, options
from profiler.cli.output import encoding, next_command, say, width


def strategies(
    name: Annotated[
        str | None, typer.Argument(help="A strategy: show all its options.", autocompletion=completion.strategies)
    ] = None,
    everything: options.AlsoHidden = False,
) -> None:
    """List the strategies of checkpointing, with their options.

    Example: gcprof strategies segments
    """
    from profiler.core import catalogue
    from profiler.core.case import Choice
    from profiler.training.strategies import TABLE
    from profiler.views.tables.listing import details, listing

    if name is not None:
        entry = catalogue.read(name, TABLE, what="strategy")
        say(details(entry, width=width(), encoding=encoding()))
        needed = {
            option.name: option.words[0] if option.words else "4" for option in entry.options if not option.default
        }
        next_command("gcprof", "run", "--strategies", Choice.of(name, needed))
        return
    say(listing(catalogue.entries(TABLE, hidden=everything), width=width(), encoding=encoding()))
    next_command("gcprof", "strategies", "segments" if "segments" in TABLE else next(iter(TABLE)))
