"""The arguments and options that several commands share, with their help texts and shell completions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import typer

VARIABLE = "_GCPROF_COMPLETE"  # set by the shell's script when it asks for completions


def _proposing(offers: Callable[[], Iterable[tuple[str, str]]]) -> Callable[[str], list[tuple[str, str]]]:
    """Return a function that completes a word, in a list the last one, to what is offered: names and what they are."""

    def propose(incomplete: str) -> list[tuple[str, str]]:
        before, comma, word = incomplete.rpartition(",")
        return [(f"{before}{comma}{name}", about) for name, about in offers() if name.startswith(word)]

    return propose


def _named(*names: str) -> list[tuple[str, str]]:
    return [(name, "") for name in names]


def _runs() -> list[tuple[str, str]]:
    """Return `last`, and the names below results/, the newest first; a path is left to the shell."""
    from profiler.runs import RESULTS, runs

    return _named("last", *(path.name for path in reversed(runs(RESULTS))))


def _entries(field: str) -> Iterator[tuple[str, str]]:
    """Yield what may be in this field of a case; of a family, the user types the member."""
    from profiler.core import catalogue
    from profiler.request.spec import TABLES
    from profiler.training import levers

    for entry in catalogue.entries({**TABLES[field], **(levers.TABLE if field == "strategy" else {})}):
        if "/" not in entry.name:
            yield entry.name.removesuffix("NAME"), entry.about


def _exports() -> list[tuple[str, str]]:
    from profiler import views
    from profiler.integrations import trackers

    return _named(*views.EXPORTS, *trackers.TRACKERS)


def _plots() -> list[tuple[str, str]]:
    from profiler import views

    return _named(*views.PLOTS)


def _devices() -> list[tuple[str, str]]:
    """Return those that may be here, and every GPU by its name."""
    from profiler.core import gpu_specs

    return _named("auto", "cpu", "cuda", *gpu_specs.names())


propose_runs, propose_plots, propose_exports = _proposing(_runs), _proposing(_plots), _proposing(_exports)
propose_models = _proposing(lambda: _entries("model"))
propose_runs_or_models = _proposing(lambda: [*_runs(), *_entries("model")])
propose_strategies = _proposing(lambda: _entries("strategy"))

CHOICES: dict[str, tuple[str, ...]] = {  # by the name of an option, in any command
    "optimizer": ("sgd", "momentum", "adam", "adamw"),
    "precision": ("fp32", "bf16", "fp16", "amp-bf16", "amp-fp16"),
    "parallel": ("ddp", "fsdp2"),
    "routing": ("balanced", "worst"),
    "verify": ("auto", "off", "strict"),
    "exclusive": ("warn", "error"),
    "color": ("auto", "always", "never"),
    "style": ("default", "slides", "paper"),
}
PROPOSALS = {
    **{name: _proposing(partial(_named, *words)) for name, words in CHOICES.items()},
    "optimizer": _proposing(lambda: _entries("optimizer")),
    "device": _proposing(_devices),
    "strategies": propose_strategies,
}


def offered(parameter: Parameter) -> Parameter:
    """Return the parameter of an option; one with choices shows them, and completes to them."""
    for option in get_args(parameter.annotation)[1:]:
        if isinstance(option, type(typer.Option())):
            if choices := CHOICES.get(parameter.name):
                option.metavar = f"[{'|'.join(choices)}]"
            option.autocompletion = option.autocompletion or PROPOSALS.get(parameter.name)
    return parameter


MODEL_HELP = "A model, as NAME:option=value,...; `gcprof models` lists them."
MODELS_HELP = "Models, as NAME:option=value,...; `gcprof models` lists them."
RUN_HELP = "A run folder, any part of its name below results/, `last`, or `ref:NAME` of `gcprof runs list --ref`."

# which model, which run

Model = Annotated[str, typer.Argument(help=MODEL_HELP, autocompletion=propose_models)]
ModelOrNone = Annotated[str | None, typer.Argument(help=MODEL_HELP, autocompletion=propose_models)]
Models = Annotated[str | None, typer.Argument(help=MODELS_HELP, autocompletion=propose_models)]
_target = typer.Argument(help="A model as for `gcprof run`, or a run folder.", autocompletion=propose_runs_or_models)
Target = Annotated[str, _target]
OptionalTarget = Annotated[str | None, _target]
RunName = Annotated[str, typer.Argument(help=RUN_HELP, autocompletion=propose_runs)]


class Words(NamedTuple):
    """Which words of a Request a command takes as flags; `with_added` makes these, and fills the Request in."""

    names: tuple[str, ...]
    model: Any = None  # its first argument, if that is the request's model
    has_switches: bool = True  # whether it also takes every switch of a case


STEP = ("optimizer", "batch_size", "precision", "accumulate", "blocks")
SWEEP = ("segments", "strategies", *STEP, "parallel", "ranks")
RUN = (
    *SWEEP, "device", "gpus", "predict", "data", "verify", "rounds", "samples", "precision_target",
    "max_samples", "max_seconds", "warmup", "seed",
)  # fmt: skip

# where

TracedDevice = Annotated[str | None, typer.Option(help="A GPU: t4, h100, ...; cuda, an H100; or cpu. [default: cuda]")]
PlannedDevice = Annotated[
    str | None, typer.Option(help="auto, cpu, cuda; or a GPU that need not be here: t4, h100, ... [default: auto]")
]
RunFolder = Annotated[Path | None, typer.Option("-o", "--output", help="The run folder; it must not exist yet.")]

# what is printed and written

AlsoHidden = Annotated[bool, typer.Option("--all", help="Also the hidden ones, made for tests.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
JsonOrTable = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results alone.")]
Width = Annotated[int | None, typer.Option("--width", min=20, help="Columns to print. [default: the terminal's width]")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file.")]
ForceIfThere = Annotated[bool, typer.Option("--force", help="Overwrite the file if it is there.")]
