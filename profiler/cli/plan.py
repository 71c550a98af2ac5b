"""gcprof plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import typer

from profiler.cli import options, plan_text
from profiler.cli.options import Words
from profiler.cli.output import COMMAND, Terminal, aside, end_with, next_command, one_of, paper, say, say_bytes
from profiler.core.errors import UserError
from profiler.request.spec import Request, flags

if TYPE_CHECKING:
    from profiler.planning.solver import Point
    from profiler.workflows.plan_fitting import FittedPlan
    from profiler.workflows.planner import Planned, PlanRequest

DEEPEST = 8
CODE = ("python", "hf", "fsdp")
PICTURES = (".png", ".svg", ".pdf")


def plan(
    ctx: typer.Context,
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
        _print_code_of(source, emit, ctx, repair_batchnorm=bool(words.repair_batchnorm))
        return
    from profiler.workflows.instrument import planned
    from profiler.workflows.planner import PlanRequest
    from profiler.workflows.planner import plan as work

    terminal = Terminal(is_quiet=quiet)
    device = planned(device, say=terminal.say, is_estimated=words.routing is not None)
    words = msgspec.structs.replace(words, strategies="none", device=device)
    request = PlanRequest(
        words=words, budget=budget, stages=stages, levels=levels, measure=measure, rounds=rounds,
        is_compared=emit is None or measure, has_recipe=emit is not None or _is_plan(output),
        has_frontier=frontier or json, typed=COMMAND.get(),
    )  # fmt: skip
    asked = _Asked(
        frontier=frontier, emit=emit, repairs=bool(words.repair_batchnorm), output=output, force=force, json=json
    )
    _refuse(request, asked)
    end_with(lambda: _print(work(request, terminal), request, asked), json=json)


def _print_code_of(path: Path, emit: str | None, ctx: typer.Context, *, repair_batchnorm: bool) -> None:
    """Print the code of a plan file. Raises UserError for options that have no effect with it."""
    from profiler.core import plan_file
    from profiler.planning.plan_code import emit as code

    if emit is None:
        raise UserError("--from needs --emit", hint=f"gcprof plan --from {path} --emit python")
    flags = {parameter.name: [*parameter.opts, *parameter.secondary_opts] for parameter in ctx.command.params}
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    typed = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    words = [_typed_word(ctx, name, flags[name]) for name in typed]
    given = [word for word in words if word not in ("--from", "--emit", "--repair-batchnorm")]
    if given:
        raise UserError(
            f"{given[0]} has no effect with --from", hint="--from has a plan already; leave one of them out"
        )
    say_bytes(code(plan_file.read(path), emit, repair_batchnorm=repair_batchnorm).encode())


def _typed_word(ctx: typer.Context, name: str, words: list[str]) -> str:
    """Return the flag that was typed; for a switch that is off, its negative form."""
    long = [word for word in words if word.startswith("--")]
    return "the model" if not long else long[-1] if ctx.params[name] is False else long[0]


class _Asked(NamedTuple):
    """The options on what to print and write."""

    frontier: bool
    emit: str | None
    repairs: bool  # whether BatchNorm is repaired, also in the code that is emitted
    output: Path | None
    force: bool
    json: bool


def _is_plan(output: Path | None) -> bool:
    """Whether an output file is for the plan; else it is for the frontier."""
    return output is not None and output.suffix.lower() == ".json"


def _refuse(request: PlanRequest, asked: _Asked) -> None:
    """Raise UserError for options that are impossible or would have no effect."""
    from profiler.views.export.files import refuse_output

    request.check()
    if request.budget is None and not asked.frontier:
        raise UserError("plan needs a budget", hint="--budget 8GiB, --budget 60%, or --frontier for all of them")
    if request.budget is None and asked.emit:
        raise UserError("--emit needs a budget", hint="--budget 60% --emit python")
    if asked.output is not None:
        refuse_output(asked.output, force=asked.force)
        suffix = asked.output.suffix.lower()
        if suffix not in (".json", ".csv", *PICTURES):
            raise UserError(f"cannot write '{asked.output.name}'", hint="plan.json, or frontier.csv, .png, .svg, .pdf")
        if suffix == ".json" and request.budget is None:
            raise UserError("a plan needs a budget", hint="--budget 60% -o plan.json")
    _refuse_without_effect(request, asked)


def _refuse_without_effect(request: PlanRequest, asked: _Asked) -> None:

    words = request.words
    idle = [word for word in flags(words, without=("strategies",)) if word.startswith("--")]
    idle = [word for word in idle if not (asked.emit and asked.repairs and word == "--repair-batchnorm")]
    if words.model is None and idle:
        raise UserError(f"{idle[0]} has no effect on costs from a file", hint="name the model, or leave it out")
    results = {"--json": asked.json, "--frontier": asked.frontier, "-o": asked.output is not None}
    idle = [name for name, is_there in results.items() if is_there and asked.emit]
    if idle:
        raise UserError(f"{idle[0]} has no effect with --emit", hint="it prints the code alone; leave one of them out")
    measuring = ["--no-measure"] if not request.measure else ["--rounds"] if request.rounds is not None else []
    measuring += ["--repair-batchnorm"] if asked.repairs and not asked.emit else []
    if measuring and (words.model is None or request.budget is None):
        message = f"{measuring[0]} has no effect where nothing is measured"
        raise UserError(message, hint="a model and --budget are measured")
    is_measured = request.measure and not (words.device or "").startswith(("fake:", "rehearse:"))
    if request.rounds is not None and not is_measured:
        raise UserError("--rounds has no effect where no time is measured", hint="leave it out")


def _print(planned: Planned, request: PlanRequest, asked: _Asked) -> int:
    """Print the plan, the frontier, or why there is none, and write the requested file; return the exit code."""
    words = [*planned.words, *(["--stages", str(request.stages)] if request.stages else [])]
    if planned.budget_bytes is None:
        _print_frontier(planned, asked)
        next_command("gcprof", "plan", *words, "--budget", "60%")
    elif planned.fitted is None:
        if asked.json:
            _say_document(planned, list(planned.frontier))
        plan_text.say_infeasible(planned, planned.budget_bytes)
    elif asked.emit:
        _print_code(planned, asked.emit, repairs=asked.repairs)
    else:
        _print_plan(planned, planned.fitted, planned.budget_bytes, asked)
        written = asked.output if _is_plan(asked.output) else None
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


def _print_frontier(planned: Planned, asked: _Asked) -> None:
    from profiler.views.tables import plans

    points = list(planned.frontier)
    if asked.json:
        _say_document(planned, points)
    else:
        count = f"{len(points)} plans, none of which another beats"
        title = f"{plan_text.title(planned, costs=True)}: {count}; by the costs of the stages"
        say(plans.frontier(points, planned.none, title=title, paper=paper()))
        for line in (*plans.reading(point.plan for point in points), plans.legend(planned.chain)):
            aside(line)
        for line in plan_text.unused_options(planned):
            aside(line)
    _write(planned, points, asked)


def _print_plan(planned: Planned, fitted: FittedPlan, budget: int, asked: _Asked) -> None:
    from profiler.views.tables import plans

    draws = asked.output is not None and not _is_plan(asked.output)
    points = list(planned.frontier) if asked.frontier or asked.json or draws else []
    if asked.json:
        _say_document(planned, points)
    else:
        if asked.frontier:
            title = plan_text.title(planned, costs=True)
            say(plans.frontier(points, planned.none, title=title, paper=paper()))
            print()
        title = f"{plan_text.title(planned)}: at most {plan_text.budget_text(planned, budget)}"
        lines = plan_text.shown(planned)
        below = plans.reading(line.way.plan for line in lines)
        below += [plans.legend(planned.chain), "times are against the step without checkpointing"]
        below += plans.same_plans(lines)
        below += [f"{plans.MARK} is chosen"] if any(line.is_chosen for line in lines) else []
        say(plans.table(lines, title=title, none=planned.none, below=below, paper=paper()))
    for line in (*plan_text.facts(planned, fitted), *plan_text.remarks(planned)):
        aside(line)
    _write(planned, points, asked)


def _write(planned: Planned, points: list[Point], asked: _Asked) -> None:
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
    if _is_plan(path):
        if planned.plan is None:
            return
        write_whole(path, encode_indented(plan_file_of(planned.chain, planned.plan)), force=force)
    elif path.suffix.lower() == ".csv":
        write_whole(path, plans.csv(points), force=force)
    else:
        said = SAID.get(planned.evidence or "measured")
        foreseen = f": {said}" if said else ""
        plan_curves = optional_deps.load("profiler.views.plots.plan_curves", needs="matplotlib")
        plan_curves.plot(points, planned.chain, title=f"{planned.title}{foreseen}", path=path, force=force)
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
        points=points, lines=plan_text.shown(planned), facts=facts,
    )  # fmt: skip
    say_bytes(document)
