"""The model of a command: its first word, or the value of --model, which every command with a model takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from profiler.cli import completion
from profiler.core.errors import UserError

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
    with_flag.__signature__ = inspect.Signature([*optional, _flag()])  # type: ignore[attr-defined]
    with_flag.__doc__ = command.__doc__
    return with_flag


def _flag() -> inspect.Parameter:
    option = typer.Option("--model", help="The same as the first word.", autocompletion=completion.models)
    return inspect.Parameter(
        "model_flag", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
    )
