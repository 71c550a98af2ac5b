"""gcprof plan and gcprof stages: plans of a model, and the costs of its stages that they are made of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from profiler.cli import options
from profiler.cli.output import Terminal, aside, interruptible, next_command, refuse_flags, say, say_bytes, write_plan
from profiler.core.errors import UserError, one_of
from profiler.core.units import bytes_text, count_text
from profiler.workflows.spec import Request

if TYPE_CHECKING:
    from profiler.planning.solver import Point
    from profiler.workflows.plan_fitting import TriedPlan
    from profiler.workflows.planner import Planned, PlanRequest

DEEPEST = 8
CODE = ("python", "hf", "fsdp")
Levels = Annotated[
    int | None,
    typer.Option(min=1, max=DEEPEST, help="Depth of checkpoints within checkpoints. [default: 1, more if needed]"),
]


def plan(
    words: Annotated[
        Request, options.Words((*options.STEP, "repair_batchnorm", "routing"), options.ModelOrNone, has_switches=False)
    ] = Request(),
    budget: Annotated[
        str | None, typer.Option(help="8GiB; 60% of the peak without checkpointing; max: that peak.")
    ] = None,
    stages: Annotated[Path | None, typer.Option(help="Plan from the costs that `gcprof stages` wrote.")] = None,
    levels: Levels = None,
    frontier: Annotated[bool, typer.Option("--frontier", help="Show the fastest plan for every peak.")] = False,
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Measure the plan and its rivals, or rehearse them.")
    ] = True,
    emit: Annotated[str | None, typer.Option(help="Print code to paste: python, hf or fsdp.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="A plan.json to print the code of, without measuring.")
    ] = None,
    device: options.PlannedDevice = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Paired rounds of the comparison. [default: 1]")] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="plan.json for the plan; .csv, .png, .svg, .pdf: the frontier."),
    ] = None,
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the fastest plan that fits a memory budget. It says where to checkpoint, and is proved by measuring.

    Example: gcprof plan transformer --budget 60% -o plan.json
    """
    one_of(emit, CODE, flag="--emit")
    if source is not None:
        _print_code_of(source, words, emit)
        return
    from profiler.workflows.planner import PlanRequest
    from profiler.workflows.planner import plan as work
    from profiler.workflows.stages import planned

    terminal = Terminal(is_quiet=quiet)
    device = planned(device, say=terminal.say, is_estimated=words.routing is not None)
    words = msgspec.structs.replace(words, strategies="none", device=device)
    request = PlanRequest(
        words=words, budget=budget, stages=stages, levels=levels, measure=measure, rounds=rounds, frontier=frontier,
        emit=emit, output=output, force=force, json=json,
    )  # fmt: skip
    request.check()
    with interruptible(json=json):
        raise typer.Exit(_print(work(request, terminal), request))


def _print_code_of(path: Path, words: Request, emit: str | None) -> None:
    """Print the code of a plan file. Raises UserError for options that have no effect with it."""
    from profiler.core import plan_file
    from profiler.planning.plan_code import emit as code

    if emit is None:
        raise UserError("--from needs --emit", hint=f"gcprof plan --from {path} --emit python")
    hint = "--from has a plan already; leave one of them out"
    if words.model is not None:
        raise UserError("the model has no effect with --from", hint=hint)
    refuse_flags(("--from", "--emit", "--repair-batchnorm"), "with --from", hint=hint)
    if (file := plan_file.read(path)).levers:
        message = f"'{path}' is for a step with {', '.join(file.levers)}: it does not fit with the checkpoints alone"
        raise UserError(message, hint="gcprof fit ... --emit python prints the code of both")
    say_bytes(code(file, emit, repair_batchnorm=bool(words.repair_batchnorm)).encode())


def _print(planned: Planned, request: PlanRequest) -> int:
    """Print the plan, the frontier, or why there is none, and write the requested file; return the exit code."""
    words = [*planned.words, *(["--stages", str(request.stages)] if request.stages else [])]
    if planned.budget_bytes is None:
        _print_tables(planned, request)
        next_command("gcprof", "plan", *words, "--budget", "60%")
    elif planned.fitted is None:
        if request.json:
            _say_document(planned, list(planned.frontier))
        _say_infeasible(planned, planned.budget_bytes)
    elif request.emit:
        from profiler.planning.chain import plan_file_of
        from profiler.planning.plan_code import emit as code

        for line in _remarks(planned):
            aside(line)
        if planned.plan == planned.none.plan:
            aside("the step fits as it is: the plan checkpoints nothing")
        if planned.plan is not None:
            made, repairs = plan_file_of(planned.chain, planned.plan), bool(request.words.repair_batchnorm)
            say_bytes(code(made, request.emit, repair_batchnorm=repairs).encode())
    else:
        _print_tables(planned, request)
        written = request.output if request.writes_plan else None
        _say_next(planned, words, budget=str(request.budget), written=written)
    return planned.exit_code


def _print_tables(planned: Planned, asked: PlanRequest) -> None:
    """Print the frontier, the plan beside its rivals, or the document of both; write the requested file."""
    from profiler.views.tables import plans

    chain, none, fitted = planned.chain, planned.none, planned.fitted
    draws = asked.output is not None and not asked.writes_plan
    points = list(planned.frontier) if fitted is None or asked.frontier or asked.json or draws else []
    title = _title_of(planned, costs=True)
    if asked.json:
        _say_document(planned, points)
    elif fitted is None:
        count = f"{len(points)} plans, none of which another beats"
        say(plans.frontier(points, chain, none, title=f"{title}: {count}; by the costs of the stages"))
        for line in (*plans.reading(chain, (point.plan for point in points)), *_unused_options(planned)):
            aside(line)
    else:
        if asked.frontier:
            say(plans.frontier(points, chain, none, title=title))
            print()
        lines = planned.plans
        below = [
            *plans.reading(chain, (line.way.plan for line in lines)),
            "times are against the step without checkpointing",
            *(f"{line.way.name}: one plan" for line in lines if line.way.same),
            *([f"{plans.MARK} is chosen"] if any(line.is_chosen for line in lines) else []),
        ]
        title = f"{_title_of(planned)}: at most {planned.budget_text}"
        say(plans.table(lines, chain, title=title, none=none, below=below))
    for line in (*_facts(planned, fitted), *_remarks(planned)) if fitted else ():
        aside(line)
    _write(planned, points, asked)


def _write(planned: Planned, points: list[Point], asked: PlanRequest) -> None:
    """Write the requested file, if any: the plan, or the frontier as a table or a picture."""
    from profiler.core.errors import load_module
    from profiler.planning.chain import plan_file_of
    from profiler.views.export import write_whole
    from profiler.views.tables import plans
    from profiler.views.tables.columns import SAID

    path, force = asked.output, asked.force
    if path is None or (asked.writes_plan and planned.plan is None):
        return
    if planned.plan is not None and asked.writes_plan:
        write_plan(plan_file_of(planned.chain, planned.plan), path, force=force)
        return
    if path.suffix.lower() == ".csv":
        write_whole(path, plans.csv(points), force=force)
    else:
        foreseen = f": {said}" if (said := SAID.get(planned.evidence or "measured")) else ""
        lines = load_module("profiler.views.plots.frontier", needs="matplotlib")
        lines.plot_plans(points, planned.chain, title=f"{planned.title}{foreseen}", path=path, force=force)
    aside(f"wrote {path}")


def _say_document(planned: Planned, points: list[Point]) -> None:
    from profiler.planning.simulator import largest_stage
    from profiler.views.tables import plans

    chain, own = planned.chain, planned.own
    name, floor = largest_stage(chain)
    facts = {
        "traced_peak_bytes": chain.traced_peak_bytes or None,
        "floor_bytes": floor,
        "largest_stage": name,
        "own_peak_bytes": own.readings.peak_bytes if own else None,
    }
    document = plans.document(
        model=str(planned.case.model) if planned.case else None, budget_bytes=planned.budget_bytes, none=planned.none,
        points=points, lines=planned.plans, facts=facts,
    )  # fmt: skip
    say_bytes(document)


def stages(
    words: Annotated[Request, options.Words(options.STEP, model=options.Model, has_switches=False)] = Request(),
    device: options.PlannedDevice = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the costs: costs.json.")] = None,
    force: options.Force = False,
    json: Annotated[bool, typer.Option("--json", help="Print the costs as JSON.")] = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure memory and time of each stage of a model. These are the costs that `gcprof plan` works on.

    Bytes are exact, from a traced step; seconds are medians.

    Example: gcprof stages transformer -o costs.json
    """
    from profiler.core.case import encode_indented
    from profiler.views.export import refuse_output, write_whole
    from profiler.views.tables import plans
    from profiler.views.tables.columns import SAID
    from profiler.workflows.stages import ModelOnDevice, planned

    refuse_output(output, force=force)
    screen = Terminal(is_quiet=quiet)
    words = msgspec.structs.replace(words, strategies="none", device=planned(device, say=screen.say))
    with ModelOnDevice(words, screen) as asked, screen.doing("measuring each stage"):
        chain = asked.chain()
    if output is not None:
        write_whole(output, encode_indented(chain), force=force)
        aside(f"wrote {output}")
    if json:
        say_bytes(encode_indented(chain))
    else:
        foreseen = f": {SAID[asked.evidence]}" if asked.evidence != "measured" else ""
        say(plans.stages(chain, title=f"{asked.heading}{foreseen}"))
    if output is not None:
        next_command("gcprof", "plan", "--stages", str(output), "--frontier")
    else:
        next_command("gcprof", "plan", *asked.words, "--budget", "60%")


# the texts: the title, facts and remarks, and why no plan fits


def _title_of(planned: Planned, *, costs: bool = False) -> str:
    """Return what is planned for; for a rehearsed GPU, also whether peaks are rehearsed or, as costs are, predicted."""
    from profiler.views.tables.columns import SAID

    if planned.evidence != "rehearsed":
        return planned.title
    is_rehearsed = not costs and any(plan.measured for plan in planned.plans)
    return f"{planned.title} ({SAID['rehearsed' if is_rehearsed else 'predicted']})"


def _say_infeasible(planned: Planned, budget: int) -> None:
    """Print that no plan fits, which stage sets the smallest peak, and what else would fit."""
    from profiler.core.record import evidence
    from profiler.planning.simulator import kept_before, largest_stage
    from profiler.views.tables.plans import workspace_text

    chain = planned.chain
    name, working = largest_stage(chain)
    kept = kept_before(chain, name)
    gradients = sum(stage.gradient_bytes for stage in chain.stages)
    smallest = planned.frontier.peak_bytes[0]
    more = " by the costs of the stages, and its step needs more" if smallest <= budget else ""
    if own := planned.own:
        needed = f"`own` needs {bytes_text(own.readings.peak_bytes)} ({evidence(own.case, own.environment)})"
        rest = f"no plan of these blocks fits: their smallest peak is {bytes_text(smallest)}{more}"
        aside(f"the model's own checkpoints fit {planned.budget_text}: {needed}; {rest}")
    else:
        is_below = budget < working < smallest  # then no deeper plans were looked for
        lowest = (
            f"none gets below {bytes_text(working)}" if is_below else f"the smallest peak is {bytes_text(smallest)}"
        )
        aside(f"no plan fits {planned.budget_text}: {lowest}{more}")
    outside = f", {bytes_text(kept)} are saved before it outside of these blocks" if kept else ""
    aside(
        f"'{name}' needs {bytes_text(working)} alone while it runs: {bytes_text(chain.static_bytes)} of it are there "
        f"in every step{outside}, and up to {bytes_text(gradients)} are gradients of parameters"
    )
    if planned.better_blocks:
        aside(planned.better_blocks)
    rest = (
        "a smaller batch or `offload` lowers the rest; sharding, 16 bits or an optimizer with less state lowers "
        "these two"
    )
    aside(workspace_text(chain, working) or rest)
    if planned.own:
        next_command("gcprof", "run", "--model", *_words_of_run(planned), "--strategies", "own")


def _facts(planned: Planned, fitted: TriedPlan) -> list[str]:
    """Return lines on the plan besides its line in the table: its floor, the frontier, and what is in reserve."""
    from profiler.planning.simulator import kept_before, largest_stage

    frontier = planned.frontier
    name, floor = largest_stage(planned.chain)
    outside = ", what is saved outside of these blocks" if kept_before(planned.chain, name) else ""
    lost = frontier.lost_fraction
    best = f"at most {lost * 100:.2g} % slower than the fastest of its depth" if lost else "the fastest of its depth"
    peak = bytes_text(fitted.point.peak_bytes)
    lines = [
        f"floor of these blocks: {bytes_text(floor)}, the static bytes{outside} and '{name}' alone while it runs; "
        f"the smallest peak of a plan of this depth: {bytes_text(frontier.peak_bytes[0])}",
        "every plan that is faster by costs did not fit when it ran: this one was made by a rule of thumb"
        if fitted.by_rule
        else f"`plan` is {best} within {peak}, by costs; "
        f"--frontier lists {count_text(len(frontier), 'plan')}, one a budget",
    ]
    lines += _unused_options(planned)
    if planned.evidence == "rehearsed" and not any(plan.measured for plan in planned.plans):
        lines.append(f"`plan` was rehearsed: its step needs {bytes_text(fitted.needed_bytes)}")
    if fitted.reserve_bytes:
        reserve = bytes_text(fitted.reserve_bytes)
        lines.append(f"{reserve} are kept in reserve: the step needs more than its stages add up to")
    return lines


def _unused_options(planned: Planned) -> list[str]:
    """Return a line on save options that were left out of every stage, and why, if there are any."""
    from profiler.planning.chain import option_names

    used = option_names(planned.frontier.chain)
    unused = [name for name in option_names(planned.chain) if name not in used]
    why = "save options left out, as by these costs they may be no faster than a checkpoint"
    return [f"{why}: {', '.join(unused)}"] if unused else []


def _remarks(planned: Planned) -> list[str]:
    """Return lines on failures, recomputed buffers (GCP004, once), doubtful times, the choice, and the records."""
    from profiler.views.tables.columns import outcome
    from profiler.workflows.planner import doubted, listed, sentence

    if not planned.plans:
        return []
    rows = [(plan.way.label, row) for plan in planned.plans for row in (plan.measured, plan.predicted) if row]
    lines = [
        f"{label}: {outcome(row)}{': ' + row.detail if row.detail else ''}"
        for label, row in rows
        if row.outcome != "ok"
    ]
    notes = {note.code: note.text for plan in planned.plans if plan.measured for note in plan.measured.notes}
    lines += [f"note: GCP004: {notes['GCP004']}"] if "GCP004" in notes else []
    if names := doubted(planned.plans, planned.none.cost.step_seconds):
        more = "they compute" if len(names) > 1 else "it computes"
        lines.append(f"note: GCP061: {listed(names)} measured faster than without checkpointing, although {more} more")
    if planned.taken:
        lines.append(sentence(planned.taken))
    elif planned.is_cut:
        lines.append("it ended before all of these were measured: no plan is chosen")
    elif planned.is_timed:
        lines.append("none of these was measured to fit the budget: no plan is chosen")
    return [*lines, *([f"plans and records: {planned.folder}"] if planned.folder else [])]


def _say_next(planned: Planned, words: list[str], *, budget: str, written: Path | None) -> None:
    """Print the next command; `written` is the file of the plan, if one was asked for."""
    has_calls = any("#" in block.name for stage in planned.chain.stages for block in stage.blocks)  # calls have no code
    written = written or planned.file
    if planned.is_cut:
        return
    if planned.plan is None:
        next_command("gcprof", "plan", *words, "--frontier")
    elif written and planned.case and has_calls:
        next_command("gcprof", "run", *_words_of_run(planned), "--strategies", f"plan:file={written}")
    elif written and not has_calls:
        repair = ["--repair-batchnorm"] if planned.case and planned.case.repair_batchnorm else []
        next_command("gcprof", "plan", "--from", str(written), "--emit", "python", *repair)
    elif any(stage.blocks for stage in planned.chain.stages):
        next_command("gcprof", "plan", *words, "--budget", budget, "--emit", "python")
    else:
        next_command("gcprof", "plan", *words, "--frontier", "-o", "frontier.png")


def _words_of_run(planned: Planned) -> list[str]:
    """Return the words for the model without --routing, which `gcprof run` lacks: a run routes its actual tokens."""
    words = planned.words
    return [word for before, word in zip(("", *words), words, strict=False) if "--routing" not in (before, word)]
