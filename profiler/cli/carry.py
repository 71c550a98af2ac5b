"""A request through an engine into a run folder, a table and its files: what `run` and `predict` share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from profiler.cli.signals import Interrupted, end_at_once
from profiler.cli.words import (
    RESULTS,
    aside,
    command_line,
    encoding,
    next_command,
    run_folder,
    say,
    say_bytes,
    say_first,
    width,
)
from profiler.errors import UserError

TOLD = ("batch_size", "optimizer", "device")  # in every line of a dry run

if TYPE_CHECKING:
    from profiler.engines import Engine
    from profiler.record import Environment
    from profiler.spec import Plan, Request
    from profiler.store import Run


def start(
    words: Request,
    *,
    config: Path | None = None,
    output: Path | None = None,
    limit: float = 600.0,
    json: bool = False,
    dry_run: bool = False,
    fit: bool = False,
) -> int:
    """Run what is asked for, show it and write it; the exit code. Raises UserError."""
    from profiler import catalogue, device_choice, engines, spec, store, sweep
    from profiler.case import Choice

    request = spec.override(sweep.read(config), words) if config else words
    spec.plan(request, device_choice.any_device)  # refuse what is wrong before torch is imported, which takes seconds
    store.refuse_existing(output or RESULTS / "new")
    connect, _ = catalogue.load(Choice("local"), engines.TABLE)
    with connect(stage_seconds=limit) as engine:
        devices = engine.survey()
        plan = spec.plan(request, lambda word: device_choice.choose_device(word, list(devices)))
        device_choice.refuse_absent([trial.case.device for trial in plan.trials], devices)
        if dry_run:
            return _print_plan(plan, devices)
        folder = output or store.new_folder(RESULTS, [str(trial.case.model) for trial in plan.trials])
        environment = device_choice.environment(plan.trials[0].case.device, devices)
        store.create(folder, plan=plan.trials, command=command_line(), environment=environment)
        return _go_on(engine, folder, plan.data_directory, devices, json, plan.remarks, fit=fit)


def resume(name: str, words: Request, limit: float, json: bool) -> int:
    """Go on with an interrupted run; the exit code. Raises UserError."""
    from profiler import catalogue, device_choice, engines, runner, store
    from profiler.analysis import progress
    from profiler.case import Choice
    from profiler.spec import Request

    if words != Request(data=words.data):
        raise UserError(
            "--resume goes on with the run's own cases",
            hint="leave out the other options (--data names the files again)",
        )
    folder = run_folder(name)
    before = store.load(folder)
    from_files = any(trial.case.data == "files" for trial in before.manifest.plan)
    if from_files != (words.data is not None):
        message = "this run reads its batch from files" if from_files else "--data has no effect on this run"
        raise UserError(message, hint="name their folder with --data" if from_files else "its batch is not from files")
    if not progress.owed(before.manifest.plan, before.records):
        aside("there is nothing left to do: the run is complete")
        return _finish(before, code=0, json=json)
    connect, _ = catalogue.load(Choice("local"), engines.TABLE)
    with connect(stage_seconds=limit) as engine:
        devices = engine.survey()
        device = before.manifest.plan[0].case.device
        runner.refuse_other_machine(before.manifest.environment, device_choice.environment(device, devices))
        return _go_on(engine, folder, words.data, devices, json, before.warnings)


def _go_on(
    engine: Engine,
    folder: Path,
    data: str | None,
    devices: dict[str, Environment],
    json: bool,
    remarks: tuple[str, ...],
    *,
    fit: bool = False,
) -> int:
    """Run what is owed, then show and write what there is, also after Ctrl-C."""
    from profiler import store

    say_first(store.load(folder).manifest.plan, devices, remarks)
    code = follow(engine, folder, data)
    return _finish(store.load(folder), code=code, json=json, fit=fit)


def follow(engine: Engine, folder: Path, data: str | None = None) -> int:
    """Run what a run folder owes, and show each record as it comes; 0, or what an interrupt ends with."""
    from profiler import runner, store
    from profiler.views.progress import Follow

    cases = [trial.case for trial in store.load(folder).manifest.plan]
    try:
        with Follow(sys.stderr, cases) as shown:
            for record, left in runner.carry_out(engine, folder, data_directory=data):
                shown.show(record, left=left)
                shown.tell_log(record, folder / "logs" / f"{store.log_name(record.case, record.round)}.log")
    except Interrupted as interrupted:
        aside("interrupted; what was printed is safe")
        return int(interrupted.exit_code)
    except UserError as error:  # it could not be written any further
        aside(f"gcprof: {error.message}")
        aside(f"hint: {error.hint}")
        return error.exit_code
    finally:
        end_at_once()
    return 0


def _finish(run: Run, *, code: int, json: bool, fit: bool = False) -> int:
    """Show and write what there is, and name what to do next; the exit code."""
    from profiler.analysis import progress, rows
    from profiler.views.panels import has_plane

    folder = run.folder
    code = code or progress.exit_code(run.records)
    _show(run, json=json, code=code)
    if fit:
        _show_fit(run)
    if progress.status(run.manifest.plan, run.records) == "partial":
        next_command("gcprof", "run", "--resume", str(folder))
    elif all(record.readings.peak_bytes is None for record in run.records):
        next_command("gcprof", "show", str(folder))
    else:
        kind = "heat" if has_plane(rows.rows(run.records)) else "memory"
        next_command("gcprof", "plot", str(folder), "--kind", kind, "-o", f"{kind}.png")
    return code


def _print_plan(plan: Plan, devices: dict[str, Environment]) -> int:
    from profiler.views.progress import varying

    say_first(plan.trials, devices, plan.remarks)
    more = [field for field in varying([trial.case for trial in plan.trials]) if field not in TOLD]
    for trial in plan.trials:
        case = trial.case
        axes = "".join(f"  {field.replace('_', ' ')} {getattr(case, field)}" for field in more)
        what = f"{case.model}  {case.strategy}  batch {case.batch_size}  {case.optimizer}{axes}  {case.device}"
        print(f"round {trial.round}  {what}  {'+'.join(trial.passes)}")
    aside(f"{len(plan.trials)} trials")
    return 0


def _show(run: Run, *, json: bool, code: int) -> None:
    """The table on stdout, or the document; then the files and what to try next."""
    from profiler.analysis import progress, rows
    from profiler.views import derived, terminal
    from profiler.views.json import document

    status = progress.status(run.manifest.plan, run.records)
    written = derived.write(run)
    if json:
        say_bytes(document(run.folder.name, run.records, status=status, exit_code=code))
    else:
        say(terminal.table(rows.rows(run.records), width=width(), encoding=encoding()))
    for path in (run.folder / "trials.jsonl", *written):
        aside(f"wrote {path}")


def _show_fit(run: Run) -> None:
    """Below the table: each known GPU with the cheapest strategy that it holds."""
    from profiler import rates
    from profiler.analysis import fit, rows
    from profiler.views import fits

    found = fit.fits(rows.rows(run.records), [rates.find(name) for name in rates.names()])
    say(fits.table(found, width=width(), encoding=encoding()))
