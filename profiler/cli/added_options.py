"""Options that commands have without declaring them: --color, --model, and a flag for each switch of a case."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from profiler.cli import options
from profiler.cli.help import MODEL
from profiler.cli.output import COLOR, one_of
from profiler.core.errors import UserError

CHOICES = ("auto", "always", "never")


def with_color(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with an option --color, which holds for all that it prints. Raises UserError for another word."""
    parameters = inspect.signature(command, eval_str=True).parameters

    def with_option(*, color: str, **words: Any) -> Any:
        COLOR.set(one_of(color, CHOICES, flag="--color"))
        return command(**words)

    others = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters.values()]
    with_option.__signature__ = inspect.Signature([*others, _color_option()])  # type: ignore[attr-defined]
    with_option.__doc__ = command.__doc__
    return with_option


def _color_option() -> inspect.Parameter:
    option = typer.Option("--color", metavar="<str>", help="auto (a terminal without NO_COLOR), always, never.")
    return inspect.Parameter("color", inspect.Parameter.KEYWORD_ONLY, default="auto", annotation=Annotated[str, option])


NAMES = ("model", "target")  # of the parameter that is the first word


def with_model_flag(command: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The command with an option --model beside its argument; of a command that takes no model, itself.

    Both at once are refused, and none where the command has no model of its own.
    """
    parameters = inspect.signature(command, eval_str=True).parameters
    word = next((key for key in NAMES if key in parameters), None)
    if word is None:
        return command
    is_needed = parameters[word].default is inspect.Parameter.empty

    def with_flag(*, model_flag: str | None, **words: Any) -> Any:
        if words[word] is not None and model_flag is not None:
            message = f"the model is given twice: '{words[word]}' and --model '{model_flag}'"
            raise UserError(message, hint="leave one of them out")
        words[word] = model_flag if words[word] is None else words[word]
        if is_needed and words[word] is None:
            raise UserError(f"{name} needs a model", hint=f"gcprof {name} mlp; `gcprof models` lists them")
        return command(**words)

    optional = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=None if key == word else parameter.default)
        for key, parameter in parameters.items()
    ]
    with_flag.__signature__ = inspect.Signature([*optional, _model_flag()])  # type: ignore[attr-defined]
    with_flag.__doc__ = command.__doc__
    return with_flag


def _model_flag() -> inspect.Parameter:
    option = typer.Option("--model", help="The same as the first word.", autocompletion=options.propose_models)
    return inspect.Parameter(
        "model_flag", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
    )


Switches = dict[str, Any]  # the words for the switches of a case that a command has, by their keys in a Request


def with_switches(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with a flag for each switch of a case in place of its parameter `switches`, which is given them.

    A switch that the command has as a parameter of its own is not among them, nor is one without a help.
    """
    parameters = inspect.signature(command, eval_str=True).parameters
    if "switches" not in parameters:
        return command
    from profiler.core.case import SWITCHES

    keys = {switch.key or field: switch for field, switch in SWITCHES.items() if switch.help}
    flags = [_switch(key, switch.help) for key, switch in keys.items() if key not in parameters]

    def with_flags(**words: Any) -> Any:
        switches = {flag.name: words.pop(flag.name) for flag in flags}
        return command(**words, switches=switches)

    parts = [
        flags if parameter.name == "switches" else [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
        for parameter in parameters.values()
    ]
    with_flags.__signature__ = inspect.Signature([parameter for some in parts for parameter in some])  # type: ignore[attr-defined]
    with_flags.__doc__ = command.__doc__
    return with_flags


def _switch(key: str, about: str) -> inspect.Parameter:
    option = typer.Option(f"--{key.replace('_', '-')}", help=about, rich_help_panel=MODEL)
    return inspect.Parameter(
        key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[bool | None, option]
    )
