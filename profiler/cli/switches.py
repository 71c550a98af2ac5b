"""The switches of a case as flags of commands, made from the fields of Case when a command is asked for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

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
    flags = [_flag(key, switch.help) for key, switch in keys.items() if key not in parameters]

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


def _flag(key: str, about: str) -> inspect.Parameter:
    option = typer.Option(f"--{key.replace('_', '-')}", help=about)
    return inspect.Parameter(
        key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[bool | None, option]
    )
