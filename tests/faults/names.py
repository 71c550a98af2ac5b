"""Names that a terminal, a page or a file could take for something else."""

from __future__ import annotations

from profiler.core.case import Choice
from profiler.core.record import Record
from tests import make
from tests.make import MIB

NAMES = {
    "formula": "=cmd|' /C calc'!A0",
    "quoted formula": "'=1+1",
    "script": "</script><script>alert(1)</script>",
    "markup": "[/][bold red]x[/bold red]",
    "path": "../../x",
    "device": "CON",
    "lines": "two\nlines\r\tand a tab",
    "long": "ab" * 5000,
    "right-to-left": "\u202egnp.exe\u202c\u200b",
    "mathematics": r"$x$ and $\frac{$",
    "pipe": "a|b|c",
    "specials": 'a|b*c_d`e[f]<g>&h%i$j#k{l}m~n^o\\p"q',
    "escape": "\x1b]0;title\x07\x1b[31mred\x9b2J",
}


def records(text: str) -> list[Record]:
    """A model of this name under a strategy of this name, which is the slower, and one that failed with these words."""
    model = Choice(text)
    none = make.record("none", case=make.case("none", model=model), peak=200 * MIB)
    named = make.record(text, case=make.case(text, model=model), seconds=(0.2, 0.2, 0.2))
    return [none, named, make.failed("all", "failed", text, case=make.case("all", model=model))]
