"""gcprof models, strategies and blocks: the names that other commands take, with their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from profiler.cli import options
from profiler.cli.output import Terminal, next_command, say, say_json
from profiler.core.errors import UserError
from profiler.core.units import batch_text

if TYPE_CHECKING:
    from profiler.core.case import Case

FEW = 2  # samples: enough to see every shape


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
    from profiler.views.tables.listing import details, listing

    if name is not None:
        table, kind = (OPTIMIZERS, "optimizer") if name in OPTIMIZERS else (TABLE, "model")
        say(details(catalogue.read(name, table, what=kind)))
        next_command("gcprof", "run", *([name] if kind == "model" else ["--optimizer", name]))
        return
    shown = {
        kind: catalogue.entries(table, hidden=everything)
        for kind, table in (("models", TABLE), ("optimizers", OPTIMIZERS))
    }
    say(*(listing(entries, title=title) for title, entries in shown.items()))
    next_command("gcprof", "models", next(iter(TABLE)))


def strategies(
    name: Annotated[
        str | None, typer.Argument(help="A strategy: show all its options.", autocompletion=options.propose_strategies)
    ] = None,
    everything: options.AlsoHidden = False,
) -> None:
    """List the strategies of checkpointing and the levers that go with them (`all+fused`), with their options.

    Example: gcprof strategies segments
    """
    from profiler.core import catalogue
    from profiler.core.case import Choice
    from profiler.training import levers
    from profiler.training.strategies import TABLE
    from profiler.views.tables.listing import details, listing

    if name is not None:
        entry = catalogue.read(name, {**TABLE, **levers.TABLE}, what="strategy")
        say(details(entry))
        needed = {
            option.name: option.words[0] if option.words else "4" for option in entry.options if option.default is None
        }
        next_command("gcprof", "run", "--strategies", Choice.of(name, needed))
        return
    beside = listing(catalogue.entries(levers.TABLE), title="levers, after a strategy: all+fused")
    say(listing(catalogue.entries(TABLE, hidden=everything)), beside)
    next_command("gcprof", "strategies", "segments")


def blocks(
    model: options.Model,
    pattern: Annotated[
        str | None, typer.Option("--pattern", help="Choose by name: 'model.layers.*', or enc1,enc2,mid.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Samples in the one forward. [default: 2]")
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Show the blocks of a model. Checkpointing works on them; each has its parameters, shapes, and what it feeds.

    Other blocks that would lower the peak, by a traced step, are named below, as `gcprof explain` names them.

    Example: gcprof blocks torchvision:resnet18 --pattern 'layer?.*'
    """
    from profiler import engines
    from profiler.core.case import encode
    from profiler.core.record import ModelSummary
    from profiler.views.tables.listing import blocks as table
    from profiler.workflows.stages import better_blocks_text

    case = _case(model, pattern, batch_size)
    with Terminal(is_quiet=quiet).doing("looking at the model"), engines.connect(measures=False) as engine:
        answer = engine.ask(
            f"{engines.WORKER}:outline", encode(case).decode(), failing=f"'{case.model}' ended without a result"
        )
        hint = "`gcprof blocks MODEL --pattern 'layers.*'` chooses blocks by name"
        summary = engines.read_answer(answer, "outline", ModelSummary, hint=hint)
        step = _step(model, pattern, batch_size)
        better = None if json else better_blocks_text(engine, step)
    if json:
        say_json(summary)
        return
    note = f"predicted for CUDA, {batch_text(step.batch_size)}: {better}" if better else None
    say(table(summary, better=note))
    chosen = ["--blocks", pattern] if pattern else []
    next_command("gcprof", "run", str(case.model), *chosen, "--strategies", "all")


def _case(model: str, pattern: str | None, batch_size: int | None) -> Case:
    from profiler.core import catalogue
    from profiler.core.case import Case, Choice
    from profiler.training.models import TABLE

    chosen = catalogue.resolve(Choice(model), TABLE, what="model")
    takes_size = "batch_size" in catalogue.read(chosen.name, TABLE).parameters
    if batch_size is not None and not takes_size:
        hint = "leave it out, or give the function a parameter batch_size"
        raise UserError(f"--batch-size has no effect on '{chosen}', which makes its own batch", hint=hint)
    return Case(
        model=chosen,
        strategy=Choice("none"),
        optimizer=Choice("sgd"),
        batch_size=(batch_size or FEW) if takes_size else None,
        device="cpu",
        blocks=pattern,
    )


def _step(model: str, pattern: str | None, batch_size: int | None) -> Case:
    """Return the case that `gcprof explain` traces for this model."""
    from profiler.request import device_choice, spec

    size = None if batch_size is None else str(batch_size)
    words = spec.Request(model=model, strategies="none", device="cuda", blocks=pattern, batch_size=size)
    return spec.check(words, device_choice.any_device).trials[0].case
