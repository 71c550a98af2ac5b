"""gcprof note: the page of a note."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from profiler.cli.output import folded
from profiler.core.errors import UserError, nearest

PAGE = Path(__file__).parent.parent / "views" / "notes.md"


def propose_notes(incomplete: str) -> list[tuple[str, str]]:
    """Complete a note's code, with its title."""
    return [(code, title) for code, title, _ in notes() if code.startswith(incomplete.upper())]


def note(
    code: Annotated[str, typer.Argument(help="The code of a note, as GCP012.", autocompletion=propose_notes)],
) -> None:
    """Explain a note that stands below a table: why it matters, and what to do.

    Example: gcprof note GCP012
    """
    pages = {known: (title, text) for known, title, text in notes()}
    known = code.upper() if not code.isdecimal() else f"GCP{code:0>3}"
    if known not in pages:
        hint = nearest(known, pages) or f"{min(pages)} to {max(pages)}"
        raise UserError(f"no note is called '{code}'", hint=hint)
    title, text = pages[known]
    for line in (f"{known}: {title}", "", *text.splitlines()):
        print(folded(line, file=sys.stdout))


def notes() -> list[tuple[str, str, str]]:
    """Return the code, the title and the text of every note, as a terminal shows them: without marks of Markdown."""
    _, *parts = re.split(r"^## (GCP\d{3}): (.*)\n", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    texts = (
        re.sub(r"\[([^]]*)\]\([^)]*\)|\*\*|<a .*?</a>\n*|^```\n?", r"\1", text, flags=re.MULTILINE)
        for text in parts[2::3]
    )
    return [(code, title, text.strip()) for code, title, text in zip(parts[::3], parts[1::3], texts, strict=True)]
