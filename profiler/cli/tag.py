"""gcprof tag."""

from __future__ import annotations

from typing import Annotated

import typer

from profiler.cli import options
from profiler.cli.output import aside, next_command


def tag(
    run: options.RunName,
    words: Annotated[list[str], typer.Argument(metavar="word", help="Words to find it by in `gcprof list`.")],
    remove: Annotated[bool, typer.Option("--remove", help="Take these words off the run.")] = False,
) -> None:
    """Give a run words of your own.

    They stand in tags.json of the run folder, and change nothing that was measured.

    Example: gcprof tag last baseline
    """
    from profiler.runs.find import change_tags, own_folder

    folder = own_folder(run)
    kept = change_tags(folder, words, remove=remove)
    aside(f"{folder.name}: {', '.join(kept) or 'no tags'}")
    next_command("gcprof", "list")
