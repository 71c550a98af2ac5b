"""Options that commands have without declaring them: --color, --model, --stage-limit, and each switch of a case."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Annotated, Any

import typer

from profiler.cli import options
from profiler.cli.help import MODEL
from profiler.cli.output import COLOR, one_of
from profiler.core.errors import UserError

CHOICES = ("auto", "always", "never")
LIMITED = (  # commands that start processes whose stages are limited
    "run", "rehearse", "predict", "explain", "timeline", "plan", "stages", "max-batch", "blocks",
)  # fmt: skip
LONGEST = 1_000_000  # seconds of a stage: eleven days
NAMES = ("model", "target")  # of the parameter that is the first argument
Switches = dict[str, Any]  # the values of a command's switches (booleans of a case), by their keys in a Request


def with_added(command: Callable[..., Any], name: str, *, of_script: bool = False) -> Callable[..., Any]:
    """Return the command with the options that it does not declare. All its parameters are then keywords.

    --color holds for all that it prints. --model can replace the first argument, if that is a model: both at once are
    refused, and so is neither if the command needs a model. A parameter `switches` is replaced by a flag for each
    switch of a case, and receives their values. --stage-limit holds for all that LIMITED commands have done, those
    of a user's script aside.
    """
    own = inspect.signature(command, eval_str=True).parameters
    word = next((key for key in NAMES if key in own), None)
    needed_by = name if word and own[word].default is Parameter.empty else None
    flags = _switches(own)

    def with_options(
        *, color: str, model_flag: str | None = None, stage_limit: float | None = None, **words: Any
    ) -> Any:
        COLOR.set(one_of(color, CHOICES, flag="--color"))
        if stage_limit is not None:
            _set_limit(stage_limit)
        if word:
            words[word] = _model(words[word], model_flag, needed_by)
        if "switches" in own:
            words["switches"] = {flag.name: words.pop(flag.name) for flag in flags}
        return command(**words)

    parameters: list[Parameter] = []
    for key, parameter in own.items():
        default = None if key == word else parameter.default
        parameters += flags if key == "switches" else [parameter.replace(kind=Parameter.KEYWORD_ONLY, default=default)]
    parameters += [STAGE_LIMIT] if name in LIMITED and not of_script else []
    parameters += [MODEL_FLAG, COLOR_OPTION] if word else [COLOR_OPTION]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__doc__ = command.__doc__
    return with_options


def _option(name: str, kind: Any, default: Any, *words: str, **settings: Any) -> Parameter:
    option = typer.Option(*words, **settings)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


COLOR_OPTION = _option(
    "color", str, "auto", "--color", metavar="<str>", help="auto (a terminal without NO_COLOR), always, never."
)
STAGE_LIMIT = _option(
    "stage_limit",
    float | None,
    None,
    "--stage-limit",
    help="Seconds that a stage of the work may take: a pass of a trial, a trace, a timed step. [default: 600]",
)
MODEL_FLAG = _option(
    "model_flag",
    str | None,
    None,
    "--model",
    help="The same as the argument `model`.",
    autocompletion=options.propose_models,
)


def _set_limit(seconds: float) -> None:
    """Set how long a stage of this command's work may take. Raises UserError for an impossible number."""
    from profiler.engines import STAGE_SECONDS

    if not 0 < seconds <= LONGEST:
        raise UserError(f"--stage-limit cannot be {seconds:g}", hint=f"seconds, more than 0, up to {LONGEST:,}")
    STAGE_SECONDS.set(seconds)


def _model(typed: str | None, flag: str | None, needed_by: str | None) -> str | None:
    """Return the model, the first argument or --model. Raises UserError for both, or for neither if it is needed."""
    if typed is not None and flag is not None:
        message = f"the model is given twice: '{typed}' and --model '{flag}'"
        raise UserError(message, hint="leave one of them out")
    if needed_by and typed is None and flag is None:
        raise UserError(f"{needed_by} needs a model", hint=f"gcprof {needed_by} mlp; `gcprof models` lists them")
    return flag if typed is None else typed


def _switches(own: Mapping[str, Parameter]) -> list[Parameter]:
    """Return a flag for each switch of a case that has a help text and is not a parameter of the command itself."""
    if "switches" not in own:
        return []
    from profiler.core.case import SWITCHES

    keys = {switch.key or field: switch.help for field, switch in SWITCHES.items() if switch.help}
    return [
        _option(key, bool | None, None, f"--{key.replace('_', '-')}", help=about, rich_help_panel=MODEL)
        for key, about in keys.items()
        if key not in own
    ]
