"""Every command line of README, docs and help, as a shell gets it when it is pasted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from profiler.cli import COMMANDS, command
from profiler.cli.help import examples

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHELL = ("", "console", "sh", "bash", "shell")
HELP = "help"


def sources() -> dict[str, str]:
    """Every page with its text, by its path in the repository."""
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def lines_of(text: str) -> list[str]:
    """The lines of a page's blocks that begin with `gcprof`; comments stay."""
    blocks = [block for language, block in FENCE.findall(text) if language in SHELL]
    found = (re.match(r"gcprof .*", line) for block in blocks for line in block.splitlines())
    return [line[0].strip() for line in found if line]


def pages() -> dict[str, list[str]]:
    """The command lines of every page that has some, and of the help of all commands."""
    help_lines = [line.strip() for name in COMMANDS for line in examples(name, command(name).__doc__)]
    shown = {name: lines_of(text) for name, text in sources().items() if name != "docs/commands.md"}
    return {name: lines for name, lines in {**shown, HELP: help_lines}.items() if lines}


def every() -> Iterator[tuple[str, str]]:
    """Each page with each of its lines."""
    return ((page, line) for page, lines in pages().items() for line in lines)
