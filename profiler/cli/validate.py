"""gcprof validate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from profiler.cli import completion, options
from profiler.cli.options import RUN_HELP
from profiler.cli.output import encoding, next_command, say, say_bytes, width

if TYPE_CHECKING:
    from profiler.runs.validate import Report


def validate(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="run", help=RUN_HELP, autocompletion=completion.runs)
    ] = None,
    json: options.Json = False,
) -> None:
    """Check every line of run folders. It finds unreadable lines, impossible numbers, repeats and what does not belong.

    Ends with 4 if a run is damaged; what is merely worth knowing is a note.

    Example: gcprof validate last
    """
    from profiler.core.case import encode
    from profiler.runs.find import run_folder
    from profiler.runs.validate import validate as look
    from profiler.views.tables.terminal import paragraph

    reports = [look(run_folder(word)) for word in runs or ["last"]]
    if json:
        say_bytes(encode(reports) + b"\n")
    else:
        for text in _lines(reports):
            say(paragraph(text, width=width(), encoding=encoding()))
    if any(report.is_damaged for report in reports):
        raise typer.Exit(4)
    next_command("gcprof", "show", reports[-1].run)


def _lines(reports: Iterable[Report]) -> Iterator[str]:
    """One line for each finding, and one for each run."""
    from profiler.core.units import count_text
    from profiler.views.tables.evidence import counted

    for report in reports:
        for finding in report.findings:
            yield f"{finding.where}: {'' if finding.is_damage else 'note: '}{finding.text}"
        damage = sum(finding.is_damage for finding in report.findings)
        verdict = f"damaged in {count_text(damage, 'place')}" if damage else "fine"
        records = count_text(report.num_records, "record")
        yield f"{report.run}: {records}{counted(report.evidence)}, {verdict}"
