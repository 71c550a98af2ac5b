"""A plan and its rivals, measured or predicted in one run folder, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from profiler.cli.output import COMMAND, Terminal, aside
from profiler.runs import RESULTS

if TYPE_CHECKING:
    from profiler.cli.plan_options import Wish
    from profiler.cli.planning import Model
    from profiler.planning.candidates import Way
    from profiler.planning.chain import Chain
    from profiler.views.tables.plans import Shown

ROUNDS = 3
SLOWER = 1  # the exit code where the plan lost, or could not be run


class Proof(NamedTuple):
    """The lines of the table, what else must be said, and the exit code."""

    lines: Sequence[Shown]
    told: Sequence[str]
    code: int


def unproved(ways: Sequence[Way]) -> Proof:
    """By the costs of the stages alone."""
    from profiler.views.tables.plans import Shown

    return Proof([Shown(way=way) for way in ways], [], 0)


def prove(model: Model, chain: Chain, ways: Sequence[Way], wish: Wish) -> Proof:
    """Run the plan and the others in paired rounds, or trace them where nothing is to be measured."""
    import msgspec

    from profiler.analysis import progress
    from profiler.analysis.rows import rows
    from profiler.core import code_digests, plan_file
    from profiler.core.case import FAKE
    from profiler.request import device_choice
    from profiler.runs import store
    from profiler.workflows import planner, runner
    from profiler.workflows.typed import command_line

    case, calibrate = model.case, not wish.measure and not model.case.is_predicted
    if calibrate:
        case = msgspec.structs.replace(case, device=FAKE + case.twin.device)
    folder = store.new_folder(RESULTS, [f"plan {case.model.name}"])
    rounds = 1 if case.device in device_choice.hollow(model.devices) else wish.rounds or ROUNDS
    cases, planned, files = planner.comparison(case, chain, ways, folder, rounds=rounds, calibrate=calibrate)
    environment = device_choice.environment(case.device, model.devices)
    digests = code_digests.digests(trial.case for trial in planned)
    digests |= {str(path): code_digests.digest(plan_file.encoded(one)) for path, one in files.items()}  # written below
    store.create(folder, plan=planned, command=command_line(COMMAND.get()), environment=environment, sources=digests)
    (folder / "plans").mkdir()
    for path, one in files.items():
        plan_file.write(one, path)
    code = runner.follow(model.engine, folder, Terminal())
    run = store.load(folder)
    aside(f"wrote {folder / 'trials.jsonl'}")
    found = rows(run.records)
    lines = planner.beside(ways, cases, found)
    lost = planner.lost(lines)
    has_lost = lost is not None or not _went_well(lines[0])
    told = [*_reasons(lines), *_notes(lines), *([lost] if lost else [])]
    return Proof(lines, told, code or progress.exit_code(run.records) or (SLOWER if has_lost else 0))


def _notes(lines: Sequence[Shown]) -> list[str]:
    """What recomputes do to buffers, once."""
    found = {note.code: note.text for line in lines if line.measured for note in line.measured.notes}
    return [f"note: GCP004: {found['GCP004']}"] if "GCP004" in found else []


def _went_well(line: Shown) -> bool:
    """Also where nothing is known of it, after Ctrl-C."""
    return all(row is None or row.outcome == "ok" for row in (line.measured, line.predicted))


def _reasons(lines: Sequence[Shown]) -> list[str]:
    from profiler.views.tables.columns import outcome

    found = [(one.way.label, row) for one in lines for row in (one.measured, one.predicted) if row is not None]
    return [
        f"{label}: {outcome(row)}{': ' + row.detail if row.detail else ''}"
        for label, row in found
        if row.outcome != "ok"
    ]
