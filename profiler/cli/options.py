"""The arguments and options that several commands share, with their help texts and shell completions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import typer

VARIABLE = "_GCPROF_COMPLETE"  # set by the shell's script when it asks for completions


def propose_runs(incomplete: str) -> list[str]:
    """Complete a run: `last`, and the names below results/, the newest first; a path is left to the shell."""
    from profiler.runs import RESULTS, find

    names = [path.name for path in reversed(find.runs(RESULTS))]
    return [name for name in ["last", *names] if name.startswith(incomplete)]


def propose_runs_or_models(incomplete: str) -> list[tuple[str, str]]:
    """Complete a run or a model, for commands that take either."""
    return [*((name, "") for name in propose_runs(incomplete)), *propose_models(incomplete)]


def propose_models(incomplete: str) -> list[tuple[str, str]]:
    """Complete a model, with its description; in a list, the last one."""
    from profiler.training.models import TABLE

    return list(_listed(TABLE, incomplete))


def propose_strategies(incomplete: str) -> list[tuple[str, str]]:
    """Complete a strategy, with its description; in a list, the last one."""
    from profiler.training import levers, strategies

    return list(_listed({**strategies.TABLE, **levers.TABLE}, incomplete))


def propose_exports(incomplete: str) -> list[str]:
    """Complete a format or tracker to export to."""
    from profiler import views
    from profiler.integrations import trackers

    return _matching([*views.EXPORTS, *trackers.TRACKERS], incomplete)


def propose_plots(incomplete: str) -> list[str]:
    """Complete a kind of plot."""
    from profiler import views

    return _matching(views.PLOTS, incomplete)


def _listed(table: dict[str, str], incomplete: str) -> Iterator[tuple[str, str]]:
    from profiler.core import catalogue

    before, comma, word = incomplete.rpartition(",")
    for entry in catalogue.entries(table):
        name = entry.name.removesuffix("NAME")  # of a family, the user types the member
        if name.startswith(word) and "/" not in name:
            yield f"{before}{comma}{name}", entry.about


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def propose_optimizers(incomplete: str) -> list[tuple[str, str]]:
    """Complete an optimizer, with its description."""
    from profiler.training import OPTIMIZERS

    return list(_listed(OPTIMIZERS, incomplete))


def propose_devices(incomplete: str) -> list[str]:
    """Complete a device: those that may be here, and every GPU by its name."""
    from profiler.core import gpu_specs

    before, comma, word = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _matching(["auto", "cpu", "cuda", *gpu_specs.names()], word)]


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
PROPOSALS = {"optimizer": propose_optimizers, "device": propose_devices, "strategies": propose_strategies}


def _proposing(choices: Iterable[str]) -> Callable[[str], list[str]]:
    def propose(incomplete: str) -> list[str]:
        return _matching(choices, incomplete)

    return propose


def offered(parameter: Parameter) -> Parameter:
    """Return the parameter of an option; one with choices shows them, and completes to them."""
    for option in get_args(parameter.annotation)[1:]:
        if isinstance(option, type(typer.Option())):
            if choices := CHOICES.get(parameter.name):
                option.metavar = f"[{'|'.join(choices)}]"
            if parameter.name in PROPOSALS or choices:
                propose = PROPOSALS.get(parameter.name) or _proposing(choices or ())
                option.autocompletion = option.autocompletion or propose
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
