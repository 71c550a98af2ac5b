"""The run folder of a user's script: written, and read by the verbs that read a run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from profiler.cli.output import COMMAND, aside, next_command, say_json
from profiler.core.errors import UserError

if TYPE_CHECKING:
    from profiler.runs.store import Run
    from profiler.scripts.comparison import Side
    from profiler.scripts.report import Variant

TRIPPED = 5
SCHEMA = 1
ON_SCRIPT = "on a script's run"


class Conclusion:
    """What is made of a command's variants: a run folder, the verdict of --fail-on, a document, the next command.

    Raises UserError for a folder that is there and for limits that cannot be read, before the command runs.
    """

    def __init__(self, output: Path | None, fail_on: str | None, *, json: bool) -> None:
        from profiler.runs import RESULTS, store
        from profiler.scripts import comparison

        store.refuse_existing(output or RESULTS / "new")
        self._output, self._json, self._started = output, json, datetime.now(UTC)
        self._limits = comparison.parse(fail_on) if fail_on is not None else ()

    def end(self, variants: Sequence[Variant], code: int, *, is_ended: bool) -> NoReturn:
        """Write, print and end the command. There is no folder if no process of it used a GPU. Raises UserError."""
        from profiler.scripts import comparison

        used = [bool(variant.processes) for variant in variants]
        folder = keep(variants, output=self._output, started=self._started) if any(used) else None
        texts = comparison.exceeded(variants, self._limits)
        for text in texts:
            aside(f"gate: {text}")
        if self._limits and not texts and all(used):
            aside("gate: nothing is over the limits")
        code = TRIPPED if texts else code
        if self._json:
            status = "failed" if not any(used) else "partial" if is_ended or not all(used) else "complete"
            name = folder.name if folder else None
            say_json({"schema": SCHEMA, "run": name, "status": status, "exit_code": code, "variants": variants})
        if folder:
            aside(f"wrote {folder / 'trials.jsonl'}")
            next_command("gcprof", "explain", str(folder))
        raise typer.Exit(code)


def keep(variants: Sequence[Variant], *, output: Path | None, started: datetime) -> Path:
    from profiler.core.case import encode
    from profiler.request.spec import command_line
    from profiler.runs import RESULTS, store
    from profiler.scripts import records

    lines = records.records(variants, started=started.isoformat(timespec="seconds"))
    manifest = store.Manifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command_line(COMMAND.get()),
        plan=records.plan(lines),
        environment=records.environment(variants[0]),
        sources={name: text for variant in variants for name, text in records.sources(variant.command).items()},
    )
    folder = output or store.new_folder(RESULTS, [records.name_of(variants[0].command).partition(".")[0]])
    store.save(folder, manifest=encode(manifest), trials=b"".join(encode(line) + b"\n" for line in lines))
    return folder


def variants_of(run: Run) -> tuple[Variant, ...] | None:
    """Return the variants of a script's run; None if it is a run of models. Raises UserError (4) if it is both."""
    from profiler.scripts import records

    scripts = [record for record in run.records if records.is_script(record)]
    if not scripts:
        if any(trial.case.command for trial in run.manifest.plan):
            hint = "run the command again"
            raise UserError(f"'{run.folder}' is of a script, and has no records", hint=hint, exit_code=4)
        return None
    if len(scripts) < len(run.records):
        hint = "show each of the runs that it was merged from"
        raise UserError(f"'{run.folder}' holds records of scripts and of models", hint=hint, exit_code=4)
    return records.variants(scripts)


def named_script(target: str | None) -> tuple[Run, tuple[Variant, ...]] | None:
    """Return a script's run by its name, for verbs that take a model or a run; None if it is no such run."""
    from profiler.runs import is_run, run_folder
    from profiler.runs.store import load

    if target is None or not is_run(target):
        return None
    run = load(run_folder(target))
    variants = variants_of(run)
    if variants is None:
        return None
    for warning in run.warnings:
        aside(f"warning: {warning}")
    return run, variants


def compared_scripts(loaded: Sequence[tuple[str, Run]]) -> tuple[Side, ...]:
    """Return the sides of a comparison of scripts; none if the runs are of models. Raises UserError (4) for both."""
    from profiler.scripts.comparison import Side

    read = [(word, run, variants_of(run)) for word, run in loaded]
    of_models = [word for word, _, variants in read if variants is None]
    sides = [
        Side(name=word, variants=found, sources=run.manifest.sources) for word, run, found in read if found is not None
    ]
    if sides and of_models:
        message = f"'{of_models[0]}' is of models, and '{sides[0].name}' of a script"
        raise UserError(message, hint="compare a script's run with another one of it", exit_code=4)
    return tuple(sides)


def under(variants: Sequence[Variant], strategies: str | None) -> tuple[Variant, ...]:
    """Return the variants under these strategies, all without any. Raises UserError for one that the run lacks."""
    from profiler.core.case import split_choices

    if strategies is None:
        return tuple(variants)
    named = [str(choice) for choice in split_choices(strategies)]
    there = list(dict.fromkeys(variant.words.get("strategy", "none") for variant in variants))
    for name in named:
        if name not in there:
            raise UserError(f"'{name}' is not in this run", hint=f"it has {', '.join(there)}")
    return tuple(variant for variant in variants if variant.words.get("strategy", "none") in named)
