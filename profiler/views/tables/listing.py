"""What a table of names offers, for a screen: knows nothing of what the names do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from profiler.core.catalogue import KINDS, Entry, Option
from profiler.views.tables.columns import Column
from profiler.views.tables.terminal import fitted, paragraph


def listing(entries: Sequence[Entry], *, width: int | None = None, encoding: str = "utf-8") -> Text:
    """A line for each name: its options with their defaults, and what it is about."""
    columns = (
        Column(head=("name", ""), cells=tuple(entry.name for entry in entries)),
        Column(
            head=("options", ""),
            cells=tuple(" ".join(_short(option) for option in entry.options) or "-" for entry in entries),
        ),
        Column(head=("about", ""), cells=tuple(entry.about for entry in entries)),
    )
    return fitted(columns, width=width, encoding=encoding)


def listings(tables: Mapping[str, Sequence[Entry]], *, width: int | None = None, encoding: str = "utf-8") -> Text:
    """Several tables, each below what its names are."""
    parts = [
        Text("\n\n").join([Text(head), listing(entries, width=width, encoding=encoding)])
        for head, entries in tables.items()
    ]
    return Text("\n\n").join(parts)


def details(entry: Entry, *, width: int | None = None, encoding: str = "utf-8") -> Text:
    """One name with all that can be set, each option with its kind and default."""
    head = Text("\n").join(
        [
            paragraph(entry.name, width=width, encoding=encoding, style="bold"),
            paragraph(entry.about, width=width, encoding=encoding, indent=""),
            Text(),
            Text(),
        ]
    )
    if not entry.options:
        return head + Text("no options")
    options = entry.options
    columns = (
        Column(head=("option", ""), cells=tuple(option.name for option in options)),
        Column(head=("default", ""), cells=tuple(_default(option) for option in options), is_number=True),
        Column(head=("what it takes", ""), cells=tuple(KINDS.get(option.kind, option.kind) for option in options)),
    )
    return head + fitted(columns, width=width, encoding=encoding)


def _short(option: Option) -> str:
    return f"{option.name}={option.default if option.default is not None else f'<{option.kind}>'}"


def _default(option: Option) -> str:
    return "must be given" if option.default is None else option.default
