"""gcprof merge."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from profiler.cli import completion
from profiler.cli.options import RUN_HELP
from profiler.cli.output import aside, next_command
from profiler.runs import RESULTS


def merge(
    runs: Annotated[list[str], typer.Argument(metavar="run", help=RUN_HELP, autocompletion=completion.runs)],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The new run folder.")] = None,
) -> None:
    """Make one run of several: all plans, and every record once. The order of the runs makes no difference.

    If two records of one trial differ, the one that began later is kept, with a note. Runs of other versions, or of
    another device by the same name, are refused.

    Example: gcprof merge shard-1 shard-2 -o results/whole
    """
    from profiler.core.record import evidence
    from profiler.core.units import count_text
    from profiler.runs import store
    from profiler.runs.find import run_folder
    from profiler.runs.merge import merge as merged
    from profiler.runs.merge import write
    from profiler.views.tables.evidence import counted

    whole = merged([run_folder(word) for word in runs])
    folder = output or store.new_folder(RESULTS, [str(trial.case.model) for trial in whole.manifest.plan])
    write(whole, folder)
    for warning in whole.warnings:
        aside(f"warning: {warning}")
    for conflict in whole.conflicts:
        trial = f"{conflict.case.strategy}, round {conflict.round}"
        aside(f"note: {trial}: the results differ; kept the later one, of '{conflict.kept}'")
    if whole.num_needless:
        needless = count_text(whole.num_needless, "record")
        aside(f"note: left out {needless} of later rounds, of cases whose first round is not ok: one run measures none")
    repeated = f", {count_text(whole.num_same, 'record')} in more than one" if whole.num_same else ""
    kinds = counted(Counter(evidence(record.case, record.environment) for record in whole.records))
    records = f"{count_text(len(whole.records), 'record')} of {count_text(len(runs), 'run')}"
    aside(f"wrote {records} to {folder}{repeated}{kinds}")
    next_command("gcprof", "show", str(folder))
