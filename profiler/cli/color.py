"""The option --color of every command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from profiler.cli.output import COLOR, one_of

CHOICES = ("auto", "always", "never")


def with_color(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with an option --color, which holds for all that it prints. Raises UserError for another word."""
    parameters = inspect.signature(command, eval_str=True).parameters

    def with_option(*, color: str, **words: Any) -> Any:
        COLOR.set(one_of(color, CHOICES, flag="--color"))
        return command(**words)

    others = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters.values()]
    with_option.__signature__ = inspect.Signature([*others, _option()])  # type: ignore[attr-defined]
    with_option.__doc__ = command.__doc__
    return with_option


def _option() -> inspect.Parameter:
    option = typer.Option("--color", metavar="<str>", help="auto (a terminal without NO_COLOR), always, never.")
    return inspect.Parameter("color", inspect.Parameter.KEYWORD_ONLY, default="auto", annotation=Annotated[str, option])
