"""gcprof models and gcprof strategies: the names that other commands take, with their options."""

from __future__ import annotations

from typing import Annotated

import typer

from profiler.cli import options
from profiler.cli.output import next_command, paper, say


def models(
    name: Annotated[
        str | None,
        typer.Argument(help="A model or an optimizer: show all its options.", autocompletion=options.propose_models),
    ] = None,
    everything: options.AlsoHidden = False,
) -> None:
    """List the models and the optimizers, with their options.

    Example: gcprof models mnist-cnn
    """
    from profiler.core import catalogue
    from profiler.training.models import TABLE
    from profiler.training.optimizers import TABLE as OPTIMIZERS
    from profiler.views.tables.listing import details, listings

    if name is not None:
        table, kind = (OPTIMIZERS, "optimizer") if name in OPTIMIZERS else (TABLE, "model")
        say(details(catalogue.read(name, table, what=kind), paper=paper()))
        next_command("gcprof", "run", *([name] if kind == "model" else ["--optimizer", name]))
        return
    shown = {
        kind: catalogue.entries(table, hidden=everything)
        for kind, table in (("models", TABLE), ("optimizers", OPTIMIZERS))
    }
    say(listings(shown, paper=paper()))
    next_command("gcprof", "models", next(iter(TABLE)))


def strategies(
    name: Annotated[
        str | None, typer.Argument(help="A strategy: show all its options.", autocompletion=options.propose_strategies)
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
        say(details(entry, paper=paper()))
        needed = {
            option.name: option.words[0] if option.words else "4" for option in entry.options if option.default is None
        }
        next_command("gcprof", "run", "--strategies", Choice.of(name, needed))
        return
    say(listing(catalogue.entries(TABLE, hidden=everything), paper=paper()))
    next_command("gcprof", "strategies", "segments")
