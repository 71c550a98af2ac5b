"""Names -> code, read without importing it: what exists, which options it takes, what it is about.

A room's table maps a name to "package.module:function". Everything else stands in that function's own source: its
keyword-only parameters are the options, their annotations the kinds, its docstring's first line is the "about".
So a new model or strategy is one file and one line, and listing them never imports torch.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from profiler.case import Choice
from profiler.errors import UserError

Count = int  # as an annotation of an option: a whole number from 1
KINDS = {
    "Count": "a whole number from 1 to 2147483647",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a word",
}


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One option of a choice. `default` is None where it must be given."""

    name: str
    kind: str
    default: str | None = None
    words: tuple[str, ...] = ()  # all that a Literal allows


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a table, with what its function's source says."""

    name: str
    target: str
    about: str
    parameters: dict[str, str | None]  # what the room itself passes, with defaults
    options: tuple[Option, ...]


def entries(table: Mapping[str, str], *, hidden: bool = False) -> list[Entry]:
    """All entries of a table in its order; names that begin with `_` only where asked for."""
    return [read(name, table) for name in table if hidden or not name.startswith("_")]


def read(name: str, table: Mapping[str, str], *, what: str = "name") -> Entry:
    """The entry of that name. Raises UserError, naming the nearest, where there is none."""
    if name not in table:
        known = [known for known in table if not known.startswith("_")]
        raise UserError(f"no {what} is called '{name}'", hint=_nearest(name, known))
    function = _function(table[name])
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + [_text(value) for value in arguments.defaults]
    return Entry(
        name=name,
        target=table[name],
        about=(ast.get_docstring(function) or "").partition("\n")[0],
        parameters={argument.arg: default for argument, default in zip(positional, defaults, strict=True)},
        options=tuple(
            _option(argument, default)
            for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        ),
    )


def resolve(choice: Choice, table: Mapping[str, str], *, what: str = "name") -> Choice:
    """The choice in its one canonical text: options checked, in their order, defaults left out.

    Raises UserError for an unknown name or option, a value of the wrong kind, or a missing option.
    """
    entry = read(choice.name, table, what=what)
    given = choice.options
    known = {option.name: option for option in entry.options}
    for key in given:
        if key not in known:
            hint = _nearest(key, list(known)) if known else f"'{choice.name}' takes no options"
            raise UserError(f"'{choice}': {what} '{choice.name}' has no option '{key}'", hint=hint)
    for option in entry.options:
        if option.default is None and option.name not in given:
            kind = KINDS.get(option.kind, option.kind)
            raise UserError(
                f"'{choice}' needs {option.name}", hint=f"write {choice.name}:{option.name}=... with {kind}"
            )
    values = {key: str(_value(given[key], option, choice)) for key, option in known.items() if key in given}
    canonical = {key: value.lower() if known[key].kind == "bool" else value for key, value in values.items()}
    return Choice.of(choice.name, {key: value for key, value in canonical.items() if value != known[key].default})


def load(choice: Choice, table: Mapping[str, str]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function behind a choice, imported, and its options as keywords of the right type."""
    entry = read(choice.name, table)
    module, _, attribute = entry.target.partition(":")
    known = {option.name: option for option in entry.options}
    keywords = {key: _value(value, known[key], choice) for key, value in choice.options.items()}
    return getattr(importlib.import_module(module), attribute), keywords


def _option(argument: ast.arg, default: ast.expr | None) -> Option:
    annotation = argument.annotation
    if isinstance(annotation, ast.Subscript):  # Literal["torch", "balanced"]
        words = tuple(str(word) for word in ast.literal_eval(annotation.slice))
        return Option(name=argument.arg, kind=" or ".join(words), default=_text(default), words=words)
    kind = ast.unparse(annotation) if annotation else ""
    assert kind in KINDS, f"option {argument.arg} is annotated '{kind}': take one of {', '.join(KINDS)} or a Literal"
    return Option(name=argument.arg, kind=kind, default=_text(default))


def _text(default: ast.expr | None) -> str | None:
    if default is None:
        return None
    value = ast.literal_eval(default)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(text: str, option: Option, choice: Choice) -> Any:
    read_as: dict[str, Callable[[str], Any]] = {
        "Count": int,
        "int": int,
        "float": float,
        "str": str,
        "bool": lambda word: {"true": True, "false": False}[word],
    }
    try:
        value = read_as.get(option.kind, str)(text)
        if not _allowed(value, option):
            raise ValueError
    except (ValueError, KeyError):
        kind = KINDS.get(option.kind, option.kind)
        raise UserError(f"'{choice}': {option.name}={text} is not {kind}", hint=f"{option.name} is {kind}") from None
    return value


def _allowed(value: Any, option: Option) -> bool:
    if option.kind == "Count":
        return bool(1 <= value < 2**31)
    return math.isfinite(value) if option.kind == "float" else not option.words or value in option.words


@cache
def _function(target: str) -> ast.FunctionDef:
    module, _, attribute = target.partition(":")
    spec = importlib.util.find_spec(module)  # finds the file; imports no more than the packages around it
    assert spec is not None, f"no module {module}"
    assert spec.origin is not None, f"no source for {target}"
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    return next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == attribute)


def _nearest(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(known)}"
