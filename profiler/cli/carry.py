"""A request through an engine into a run folder, a table and its files: what `run` and `predict` share."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from profiler.cli.consent import resume_words
from profiler.cli.output import aside, command_line, encoding, next_command, say, say_bytes, say_first, width
from profiler.cli.placement import Where
from profiler.cli.signals import Interrupted, end_at_once
from profiler.core.errors import UserError
from profiler.runs import RESULTS

LOCAL = Where()

TOLD = ("batch_size", "optimizer", "device", "parallel", "ranks")  # in every line of a dry run

if TYPE_CHECKING:
    from profiler.core.case import Trial
    from profiler.core.record import Environment
    from profiler.core.schedule import Shard
    from profiler.engines import Engine
    from profiler.request.spec import Plan, Request
    from profiler.runs.store import Run


def start(
    words: Request,
    *,
    config: Path | None = None,
    output: Path | None = None,
    limit: float = 600.0,
    json: bool = False,
    dry_run: bool = False,
    fit: bool = False,
    exclusive: bool = False,
    where: Where = LOCAL,
) -> int:
    """Run what is asked for, show it and write it; the exit code. Raises UserError."""
    from profiler import engines
    from profiler.core import schedule
    from profiler.request import device_choice, spec, sweep
    from profiler.runs import store

    request = spec.override(sweep.read(config), words) if config else words
    asked = spec.plan(request, device_choice.any_device)  # refuse what is wrong before torch is imported: seconds
    refuse_idle(asked.trials, exclusive=exclusive)
    store.refuse_existing(output or RESULTS / "new")
    part = schedule.parse_shard(where.shard) if where.shard else None
    with engines.connect(where.engine, stage_seconds=limit, plan=asked.trials) as engine:
        devices = where.survey(engine)
        plan = planned(request, devices, part=part)
        if not plan.trials:
            return _nothing(plan, json)
        if dry_run:
            return _print_plan(plan, devices, engine, where.engine)
        return begin(
            engine, plan.trials, output=output, command=command_line(), data=plan.data_directory, devices=devices,
            json=json, remarks=plan.remarks, fit=fit, exclusive=exclusive, shard=plan.shard,
        )  # fmt: skip


def planned(request: Request, devices: dict[str, Environment], *, part: Shard | None = None) -> Plan:
    """The plan of a request on the devices that are here, or a part of it. Raises UserError where one is not here."""
    import msgspec

    from profiler.core import schedule
    from profiler.request import device_choice, spec

    plan = spec.plan(request, lambda word: device_choice.choose_device(word, list(devices)))
    once = schedule.in_one_round(plan.trials, device_choice.hollow(devices))
    plan = msgspec.structs.replace(plan, trials=once)
    device_choice.refuse_absent([trial.case.device for trial in plan.trials], devices)
    device_choice.refuse_crowded([trial.case for trial in plan.trials], devices)
    return spec.part_of(plan, part) if part else plan


def refuse_idle(trials: Iterable[Trial], *, exclusive: bool) -> None:
    """Raises UserError where the device must be exclusive, and nothing is measured on it."""
    if exclusive and all(trial.case.is_predicted for trial in trials):
        raise UserError("--exclusive has no effect on a prediction", hint="nothing is measured; leave it out")


def begin(
    engine: Engine,
    trials: tuple[Trial, ...],
    *,
    output: Path | None,
    command: str,
    data: str | None,
    devices: dict[str, Environment],
    json: bool,
    remarks: tuple[str, ...] = (),
    fit: bool = False,
    exclusive: bool = False,
    shard: Shard | None = None,
) -> int:
    """Make a run folder of these trials, and run them; the exit code."""
    from msgspec import UNSET

    from profiler.request import device_choice
    from profiler.runs import run_diff, store

    folder = output or store.new_folder(RESULTS, [str(trial.case.model) for trial in trials])
    store.create(
        folder,
        plan=trials,
        command=command,
        environment=device_choice.environment(trials[0].case.device, devices),
        sources=run_diff.code_digests(trial.case for trial in trials),
        shard=shard or UNSET,
    )
    return go_on(engine, folder, data, devices, json, remarks, fit=fit, exclusive=exclusive)


def go_on(
    engine: Engine,
    folder: Path,
    data: str | None,
    devices: dict[str, Environment],
    json: bool,
    remarks: tuple[str, ...],
    *,
    fit: bool = False,
    exclusive: bool = False,
) -> int:
    """Run what is owed, then show and write what there is, also after Ctrl-C."""
    from profiler.runs import store

    say_first(store.load(folder).manifest.plan, devices, remarks)
    code = follow(engine, folder, data, exclusive=exclusive)
    return finish(store.load(folder), code=code, json=json, fit=fit, data=data)


def follow(engine: Engine, folder: Path, data: str | None = None, *, exclusive: bool = False) -> int:
    """Run what a run folder owes, and show each record as it comes; 0, or what an interrupt ends with."""
    from profiler.runs import store
    from profiler.views.tables.progress import Follow
    from profiler.workflows import runner

    cases = [trial.case for trial in store.load(folder).manifest.plan]
    try:
        with Follow(sys.stderr, cases) as shown:
            for record, left in runner.carry_out(engine, folder, data_directory=data, exclusive=exclusive, warn=_warn):
                shown.show(record, left=left)
                shown.tell_log(record, folder / "logs" / f"{store.log_name(record.case, record.round)}.log")
    except Interrupted as interrupted:
        aside("interrupted; what was printed is safe")
        return int(interrupted.exit_code)
    except UserError as error:  # it could not be written any further, or the device is not as it must be
        _say_error(error)
        return error.exit_code
    finally:
        end_at_once()
    return 0


def finish(run: Run, *, code: int, json: bool, fit: bool = False, data: str | None = None) -> int:
    """Show and write what there is, and name what to do next; the exit code."""
    from profiler.analysis import progress, rows
    from profiler.core.units import count_text
    from profiler.views.plots.panels import has_plane

    folder = run.folder
    code = code or progress.exit_code(run.records)
    code = _show(run, json=json, code=code)
    if fit:
        _show_fit(run)
    lost = sum(record.outcome in progress.LOST for record in rows.latest(run.records))
    again = resume_words(run, data)
    if lost:
        aside(f"note: {count_text(lost, 'trial')} crashed or timed out; {shlex.join(again)} measures such trials again")
    if progress.status(run.manifest.plan, run.records) == "partial":
        next_command(*again)
    elif run.manifest.shard:
        aside(part_words(run))
    elif all(record.readings.peak_bytes is None for record in run.records):
        next_command("gcprof", "show", str(folder))
    else:
        kind = "heat" if has_plane(rows.rows(run.records)) else "memory"
        next_command("gcprof", "plot", str(folder), "--kind", kind, "-o", f"{kind}.png")
    return code


def _print_plan(plan: Plan, devices: dict[str, Environment], engine: Engine, where: str) -> int:
    from profiler.cli import cost
    from profiler.views.tables.progress import settings, varying

    say_first(plan.trials, devices, plan.remarks)
    more = [field for field in varying([trial.case for trial in plan.trials]) if field not in TOLD]
    for trial in plan.trials:
        case = trial.case
        words = [
            f"round {trial.round}", str(case.model), str(case.strategy), f"batch {case.batch_size}",
            str(case.optimizer), *settings(case, (*more, "parallel", "ranks")), case.device, "+".join(trial.passes),
        ]  # fmt: skip
        print("  ".join(words))
    for line in cost.told(plan, devices, engine, where):
        aside(line)
    return 0


def part_words(run: Run) -> str:
    """What a reader of one part of a sweep must know, and what to do next."""
    told = f"part {run.manifest.shard} of a sweep: what is measured in other parts is not here"
    return f"{told}; gcprof merge makes one run of all parts"


def _nothing(plan: Plan, json: bool) -> int:
    """There are fewer pairings than parts: no folder is made, and nothing is wrong."""
    from profiler.views.export.json import document

    aside(f"part {plan.shard} is empty: the sweep has fewer pairings of a baseline and a round than parts")
    if json:
        say_bytes(document(None, [], status="complete", exit_code=0))
    return 0


def _show(run: Run, *, json: bool, code: int) -> int:
    """The table on stdout before any file is written, or the document after them, which holds the exit code."""
    from profiler.analysis import progress, rows
    from profiler.views.export.json import document
    from profiler.views.tables import terminal

    if not json:
        say(terminal.table(rows.rows(run.records), width=width(), encoding=encoding()))
    code, told = _derive(run, code)
    if json:
        status = progress.status(run.manifest.plan, run.records)
        say_bytes(document(run.folder.name, run.records, status=status, exit_code=code))
    for line in told:
        aside(line)
    return code


def _derive(run: Run, code: int) -> tuple[int, list[str]]:
    """Write what can be derived; the exit code, and what to say. Without pictures a run is as good."""
    from profiler.views.export import files

    told = [f"wrote {run.folder / 'trials.jsonl'}"]
    try:
        told += [f"wrote {path}" for path in files.write_tables(run)]
        told += [f"wrote {path}" for path in files.write_pictures(run)]
    except UserError as error:
        if error.exit_code != 1:
            return error.exit_code, [*told, f"gcprof: {error.message}", f"hint: {error.hint}"]
        told.append(f"note: no picture was drawn: {error.message}; {error.hint}")
    return code, told


def _say_error(error: UserError) -> None:
    aside(f"gcprof: {error.message}")
    aside(f"hint: {error.hint}")


def _warn(text: str) -> None:
    aside(f"warning: {text}")


def _show_fit(run: Run) -> None:
    """Below the table: each known GPU with the cheapest strategy that it holds."""
    from profiler.analysis import fit, rows
    from profiler.core import gpu_specs
    from profiler.views.tables import max_batch

    found = fit.fits(rows.rows(run.records), [gpu_specs.find(name) for name in gpu_specs.names()])
    say(max_batch.fits(found, width=width(), encoding=encoding()))
