"""gcprof models."""

from __future__ import annotations

from typing import Annotated

import typer

from profiler.cli import completion, options
from profiler.cli.output import encoding, next_command, say, width


def models(
    name: Annotated[
        str | None,
        typer.Argument(help="A model or an optimizer: show all its options.", autocompletion=completion.models),
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
        say(details(catalogue.read(name, table, what=kind), width=width(), encoding=encoding()))
        next_command("gcprof", "run", *([name] if kind == "model" else ["--optimizer", name]))
        return
    shown = {
        kind: catalogue.entries(table, hidden=everything)
        for kind, table in (("models", TABLE), ("optimizers", OPTIMIZERS))
    }
    say(listings(shown, width=width(), encoding=encoding()))
    next_command("gcprof", "models", next(iter(TABLE)))
