"""gcprof plan and gcprof stages: plans of a model, and the costs of its stages that they are made of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from profiler.cli import options, plan_text
from profiler.cli.options import Words
from profiler.cli.output import (
    COMMAND,
    Terminal,
    aside,
    interruptible,
    next_command,
    one_of,
    refuse_flags,
    say,
    say_bytes,
)
from profiler.core.errors import UserError
from profiler.request.spec import Request

if TYPE_CHECKING:
    from profiler.planning.solver import Point
    from profiler.workflows.plan_fitting import TriedPlan
    from profiler.workflows.planner import Planned, PlanRequest

DEEPEST = 8
CODE = ("python", "hf", "fsdp")


def plan(
    words: Annotated[
        Request, Words((*options.STEP, "repair_batchnorm", "routing"), options.ModelOrNone, has_switches=False)
    ] = Request(),
    budget: Annotated[
        str | None, typer.Option(help="8GiB; 60% of the peak without checkpointing; max: that peak.")
    ] = None,
    stages: Annotated[Path | None, typer.Option(help="Plan from the costs that `gcprof stages` wrote.")] = None,
    levels: Annotated[
        int | None,
        typer.Option(min=1, max=DEEPEST, help="Depth of checkpoints within checkpoints. [default: 1, more if needed]"),
    ] = None,
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
    if emit is not None:
        one_of(emit, CODE, flag="--emit")
    if source is not None:
        _print_code_of(source, words, emit)
        return
    from profiler.workflows.absent_gpus import planned
    from profiler.workflows.planner import PlanRequest
    from profiler.workflows.planner import plan as work

    terminal = Terminal(is_quiet=quiet)
    device = planned(device, say=terminal.say, is_estimated=words.routing is not None)
    words = msgspec.structs.replace(words, strategies="none", device=device)
    request = PlanRequest(
        words=words, budget=budget, stages=stages, levels=levels, measure=measure, rounds=rounds, frontier=frontier,
        emit=emit, output=output, force=force, json=json, typed=COMMAND.get(),
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
    say_bytes(code(plan_file.read(path), emit, repair_batchnorm=bool(words.repair_batchnorm)).encode())


def _print(planned: Planned, request: PlanRequest) -> int:
    """Print the plan, the frontier, or why there is none, and write the requested file; return the exit code."""
    words = [*planned.words, *(["--stages", str(request.stages)] if request.stages else [])]
    if planned.budget_bytes is None:
        _print_frontier(planned, request)
        next_command("gcprof", "plan", *words, "--budget", "60%")
    elif planned.fitted is None:
        if request.json:
            _say_document(planned, list(planned.frontier))
        plan_text.say_infeasible(planned, planned.budget_bytes)
    elif request.emit:
        _print_code(planned, request.emit, repairs=bool(request.words.repair_batchnorm))
    else:
        _print_plan(planned, planned.fitted, planned.budget_bytes, request)
        written = request.output if request.writes_plan else None
        plan_text.say_next(planned, words, budget=str(request.budget), written=written)
    return planned.exit_code


def _print_code(planned: Planned, kind: str, *, repairs: bool) -> None:
    """Print the code of the best plan that was measured, else of the solver's."""
    from profiler.planning.plan import plan_file_of
    from profiler.planning.plan_code import emit

    for line in plan_text.remarks(planned):
        aside(line)
    if planned.plan == planned.none.plan:
        aside("the step fits as it is: the plan checkpoints nothing")
    if planned.plan is not None:
        say_bytes(emit(plan_file_of(planned.chain, planned.plan), kind, repair_batchnorm=repairs).encode())


def _print_frontier(planned: Planned, asked: PlanRequest) -> None:
    from profiler.views.tables import plans

    points = list(planned.frontier)
    if asked.json:
        _say_document(planned, points)
    else:
        count = f"{len(points)} plans, none of which another beats"
        title = f"{plan_text.title(planned, costs=True)}: {count}; by the costs of the stages"
        say(plans.frontier(points, planned.none, title=title))
        for line in (*plans.reading(point.plan for point in points), plans.legend(planned.chain)):
            aside(line)
        for line in plan_text.unused_options(planned):
            aside(line)
    _write(planned, points, asked)


def _print_plan(planned: Planned, fitted: TriedPlan, budget: int, asked: PlanRequest) -> None:
    from profiler.views.tables import plans

    draws = asked.output is not None and not asked.writes_plan
    points = list(planned.frontier) if asked.frontier or asked.json or draws else []
    if asked.json:
        _say_document(planned, points)
    else:
        if asked.frontier:
            title = plan_text.title(planned, costs=True)
            say(plans.frontier(points, planned.none, title=title))
            print()
        title = f"{plan_text.title(planned)}: at most {plan_text.budget_text(planned, budget)}"
        lines = planned.comparison.plans if planned.comparison else ()
        below = plans.reading(line.way.plan for line in lines)
        below += [plans.legend(planned.chain), "times are against the step without checkpointing"]
        below += plans.same_plans(lines)
        below += [f"{plans.MARK} is chosen"] if any(line.is_chosen for line in lines) else []
        say(plans.table(lines, title=title, none=planned.none, below=below))
    for line in (*plan_text.facts(planned, fitted), *plan_text.remarks(planned)):
        aside(line)
    _write(planned, points, asked)


def _write(planned: Planned, points: list[Point], asked: PlanRequest) -> None:
    """Write the requested file, if any: the plan, or the frontier as a table or a picture."""
    from profiler.core import optional_deps
    from profiler.core.case import encode_indented
    from profiler.planning.plan import plan_file_of
    from profiler.views.export.files import write_whole
    from profiler.views.tables import plans
    from profiler.views.tables.evidence import SAID

    path, force = asked.output, asked.force
    if path is None:
        return
    if asked.writes_plan:
        if planned.plan is None:
            return
        write_whole(path, encode_indented(plan_file_of(planned.chain, planned.plan)), force=force)
    elif path.suffix.lower() == ".csv":
        write_whole(path, plans.csv(points), force=force)
    else:
        said = SAID.get(planned.evidence or "measured")
        foreseen = f": {said}" if said else ""
        lines = optional_deps.load("profiler.views.plots.lines", needs="matplotlib")
        lines.plot_plans(points, planned.chain, title=f"{planned.title}{foreseen}", path=path, force=force)
    aside(f"wrote {path}")


def _say_document(planned: Planned, points: list[Point]) -> None:
    from profiler.planning.candidates import largest_stage
    from profiler.views.tables import plans

    chain, own = planned.chain, planned.own
    name, floor = largest_stage(chain)
    facts = {
        "traced_peak_bytes": chain.traced_peak_bytes or None,
        "floor_bytes": floor,
        "largest_stage": name,
        "own_peak_bytes": own.peak_bytes if own else None,
    }
    document = plans.document(
        model=str(planned.case.model) if planned.case else None, budget_bytes=planned.budget_bytes, none=planned.none,
        points=points, lines=planned.comparison.plans if planned.comparison else (), facts=facts,
    )  # fmt: skip
    say_bytes(document)


def stages(
    words: Annotated[Request, Words(options.STEP, model=options.Model, has_switches=False)] = Request(),
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
    from profiler.views.export.files import refuse_output, write_whole
    from profiler.views.tables import plans
    from profiler.views.tables.evidence import SAID
    from profiler.workflows.absent_gpus import planned
    from profiler.workflows.stages import ModelOnDevice

    if output is not None:
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
