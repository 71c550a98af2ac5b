"""gcprof migrate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from profiler.cli import completion
from profiler.cli.output import RUN_HELP, aside, next_command


def migrate(
    run: Annotated[str, typer.Argument(help=RUN_HELP, autocompletion=completion.runs)] = "last",
    in_place: Annotated[bool, typer.Option("--in-place", help="Rewrite the run folder itself.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A new run folder to write instead.")] = None,
) -> None:
    """Rewrite a run of an old schema in the present one. Old runs can be read without it, but not merged.

    Example: gcprof migrate last --in-place
    """
    from profiler.core.errors import UserError
    from profiler.core.units import count_text
    from profiler.runs import migrate as migrating
    from profiler.runs.find import run_folder

    if in_place and output is not None:
        raise UserError("--in-place has no effect with -o", hint="leave one of them out")
    folder = run_folder(run)
    old = migrating.num_old(folder)
    if not old:
        aside(f"nothing to do: '{folder}' is of the present schema")
        return
    if not in_place and output is None:
        raise UserError(
            f"'{folder}' is of an old schema", hint=f"gcprof migrate {run} --in-place, or -o for a new folder"
        )
    if output is None:
        migrating.in_place(folder)
    else:
        migrating.copied(folder, output)
    aside(f"brought {count_text(old, 'document')} of {output or folder} to the present schema")
    next_command("gcprof", "validate", str(output or folder))
