"""gcprof runs list, tag, rm, merge and validate: what keeps run folders in order."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from profiler.cli import options
from profiler.cli.output import aside, next_command, say, say_json
from profiler.core.errors import UserError, refuse_idle
from profiler.core.units import bytes_text, count_text
from profiler.runs import RESULTS


def list_runs(
    folder: Annotated[Path, typer.Option("--folder", help="Where the run folders are.")] = RESULTS,
    ref: Annotated[bool, typer.Option("--ref", help="The runs that come with gcprof, to compare with.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """List the runs, the newest last.

    Example: gcprof runs list
    """
    from profiler.views.tables.details import overviews, references, run_list

    if not os.path.isdir(folder) and folder != RESULTS:
        raise UserError(f"there is no folder '{folder}'", hint="name the folder that holds the run folders")
    if ref:
        refuse_idle({"--folder": folder != RESULTS}, "with --ref")
    listed = references() if ref else overviews(folder)
    if json:
        say_json(listed)
    elif listed:
        say(run_list(listed))
        next_command("gcprof", "show", listed[-1].name if ref else str(folder / listed[-1].name))
    else:
        aside(f"no runs in {folder}/ yet")
        next_command("gcprof", "run")


def tag(
    run: options.RunName,
    words: Annotated[
        list[str], typer.Argument(metavar="word", help="Tags: words to find it by in `gcprof runs list`.")
    ],
    remove: Annotated[bool, typer.Option("--remove", help="Remove these tags.")] = False,
) -> None:
    """Give a run words of your own.

    They stand in tags.json of the run folder, and change nothing that was measured.

    Example: gcprof runs tag last baseline
    """
    from profiler.runs import change_tags, own_folder

    folder = own_folder(run)
    kept = change_tags(folder, words, remove=remove)
    aside(f"{folder.name}: {', '.join(kept) or 'no tags'}")
    if folder.resolve().parent == RESULTS.resolve():
        next_command("gcprof", "runs", "list")
        return
    if kept:
        aside(f"note: commands find runs below {RESULTS}/ by their tags; this one is named by its path: {folder}")
    next_command("gcprof", "runs", "list", "--folder", str(folder.parent))


def rm(
    runs: Annotated[
        list[str], typer.Argument(metavar="run", help="Run folders below results/, or any part of a name.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
) -> None:
    """Remove runs, after asking.

    Only folders below results/ are removed, never one that is being written to, and no link is followed.

    Example: gcprof runs rm 20261120T174900Z-mlp-3fa9c1
    """
    from profiler.runs import own_folder, read_tags, store
    from profiler.views.sanitize import plain

    if "last" in runs:
        raise UserError("'last' is no name: what is removed is named", hint="gcprof runs list shows the names")
    folders = list(dict.fromkeys(map(own_folder, runs)))
    for folder in folders:
        store.refuse_removal(folder)
    for folder in folders:
        if not yes:
            words = f", tagged {', '.join(tags)}" if (tags := read_tags(folder)) else ""
            question = f"remove {folder} ({bytes_text(store.size_bytes(folder))}{words})? [y/N]"
            print(plain(question), end=" ", file=sys.stderr, flush=True)
            answer = sys.stdin.readline() if sys.stdin else ""
            if not answer.endswith("\n"):
                print(file=sys.stderr)
            if answer.strip().lower() not in ("y", "yes"):  # no answer is a no
                raise UserError(f"'{folder}' is kept", hint="--yes removes without asking")
        store.remove(folder)
        aside(f"removed {folder}")


def merge(
    runs: Annotated[list[str], typer.Argument(metavar="run", help=options.RUN_HELP)],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The new run folder.")] = None,
) -> None:
    """Merge several runs into one: all planned trials, every record once. The order of the runs makes no difference.

    If two records of one trial differ, the one that began later is kept, with a note. Runs of other versions, or of
    another device by the same name, are refused. Without all shards of one sweep, what they make is partial.

    Example: gcprof runs merge shard-1 shard-2 -o results/whole
    """
    from profiler.core.record import evidence
    from profiler.runs import run_folder, store
    from profiler.runs.merge import merge as merged
    from profiler.runs.merge import write
    from profiler.views.tables.columns import counted

    whole = merged([run_folder(word) for word in runs])
    folder = output or store.new_folder(RESULTS, [str(trial.case.model) for trial in whole.manifest.plan])
    write(whole, folder)
    for warning in whole.warnings:
        aside(f"warning: {warning}")
    for remark in whole.remarks:
        aside(f"note: {remark}")
    repeated = f", {count_text(whole.num_same, 'record')} in more than one" if whole.num_same else ""
    kinds = counted(Counter(evidence(record.case, record.environment) for record in whole.records))
    records = f"{count_text(len(whole.records), 'record')} of {count_text(len(runs), 'run')}"
    aside(f"wrote {records} to {folder}{repeated}{kinds}")
    next_command("gcprof", "show", str(folder))


def validate(
    runs: Annotated[list[str] | None, typer.Argument(metavar="run", help=options.RUN_HELP)] = None,
    json: options.Json = False,
) -> None:
    """Check every line of run folders. It finds unreadable lines, impossible numbers, repeats and what does not belong.

    Ends with 4 if a run is damaged; what is merely worth knowing is a note.

    Example: gcprof runs validate last
    """
    from profiler.runs import run_folder
    from profiler.runs.merge import validate as look
    from profiler.views.tables import Table
    from profiler.views.tables.columns import counted

    reports = [look(run_folder(word)) for word in runs or ["last"]]
    if json:
        say_json(reports)
    else:
        for report in reports:
            for finding in report.findings:
                say(Table(above=(f"{finding.where}: {'' if finding.is_damage else 'note: '}{finding.text}",)))
            damage = sum(finding.is_damage for finding in report.findings)
            verdict = f"damaged in {count_text(damage, 'place')}" if damage else "fine"
            records = f"{count_text(report.num_records, 'record')}{counted(report.evidence)}"
            say(Table(above=(f"{report.run}: {records}, {verdict}",)))
    if any(finding.is_damage for report in reports for finding in report.findings):
        raise typer.Exit(4)
    next_command("gcprof", "show", reports[-1].run)
