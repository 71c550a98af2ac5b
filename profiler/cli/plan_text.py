"""The texts of `gcprof plan`: the title, the compared plans, facts and remarks, and why no plan fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiler.cli.output import aside, next_command
from profiler.core.units import bytes_text

if TYPE_CHECKING:
    from pathlib import Path

    from profiler.workflows.plan_fitting import TriedPlan
    from profiler.workflows.planner import Planned


def title(planned: Planned, *, costs: bool = False) -> str:
    """Return what is planned for; for a rehearsed GPU, also whether peaks are rehearsed or, as costs are, predicted."""
    from profiler.views.tables.evidence import SAID

    if planned.evidence != "rehearsed":
        return planned.title
    compared = planned.comparison.plans if planned.comparison else ()
    is_rehearsed = not costs and any(plan.measured for plan in compared)
    return f"{planned.title} ({SAID['rehearsed' if is_rehearsed else 'predicted']})"


def budget_text(planned: Planned, budget: int) -> str:
    """Return a budget in bytes, and in percent of the peak without checkpointing, in words."""
    from profiler.planning.candidates import whole_bytes

    peak = whole_bytes(planned.chain)
    percent = f", {budget / peak * 100:.0f} % of the peak without checkpointing" if peak else ""
    return f"{bytes_text(budget)}{percent}"


def say_infeasible(planned: Planned, budget: int) -> None:
    """Print that no plan fits, which stage sets the smallest peak, and what else would fit."""
    from profiler.planning.candidates import kept_before, largest_stage
    from profiler.views.tables.plans import workspace_text

    chain = planned.chain
    name, working = largest_stage(chain)
    kept = kept_before(chain, name)
    gradients = sum(stage.gradient_bytes for stage in chain.stages)
    smallest = planned.frontier.peak_bytes[0]
    more = " by the costs of the stages, and its step needs more" if smallest <= budget else ""
    if own := planned.own:
        needed = f"`own` needs {bytes_text(own.peak_bytes)} ({own.evidence})"
        rest = f"no plan of these blocks fits: their smallest peak is {bytes_text(smallest)}{more}"
        aside(f"the model's own checkpoints fit {budget_text(planned, budget)}: {needed}; {rest}")
    else:
        is_below = budget < working < smallest  # then no deeper plans were looked for
        lowest = (
            f"none gets below {bytes_text(working)}" if is_below else f"the smallest peak is {bytes_text(smallest)}"
        )
        aside(f"no plan fits {budget_text(planned, budget)}: {lowest}{more}")
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


def facts(planned: Planned, fitted: TriedPlan) -> list[str]:
    """Return lines on the plan besides its line in the table: its floor, the frontier, and what is in reserve."""
    from profiler.planning.candidates import kept_before, largest_stage

    frontier = planned.frontier
    name, floor = largest_stage(planned.chain)
    outside = ", what is saved outside of these blocks" if kept_before(planned.chain, name) else ""
    lost = frontier.lost_fraction
    faster = f"faster by {lost * 100:.2g} %" if lost else "faster"
    peak = bytes_text(fitted.point.peak_bytes)
    lines = [
        f"floor of these blocks: {bytes_text(floor)}, the static bytes{outside} and '{name}' alone while it runs; "
        f"the smallest peak of a plan of this depth: {bytes_text(frontier.peak_bytes[0])}",
        "every plan that the costs prefer needs more memory than its costs say: this one is by a heuristic"
        if fitted.by_rule
        else f"by these costs no plan of this depth within {peak} is {faster} than `plan`; "
        f"{len(frontier)} {'plan is' if len(frontier) == 1 else 'plans are'} on the frontier",
    ]
    lines += unused_options(planned)
    compared = planned.comparison.plans if planned.comparison else ()
    if planned.evidence == "rehearsed" and not any(plan.measured for plan in compared):
        lines.append(f"`plan` was rehearsed: its step needs {bytes_text(fitted.needed_bytes)}")
    if fitted.reserve_bytes:
        reserve = bytes_text(fitted.reserve_bytes)
        lines.append(f"{reserve} are kept in reserve: the step needs more than its stages add up to")
    return lines


def unused_options(planned: Planned) -> list[str]:
    """Return a line on save options that no plan uses, and why, if there are any."""
    why = "save options left out, as by these costs they may be no faster than a checkpoint"
    return [f"{why}: {', '.join(planned.unused_options)}"] if planned.unused_options else []


def remarks(planned: Planned) -> list[str]:
    """Return lines on failures, recomputed buffers (GCP004, once), doubtful times, the choice, and the records."""
    from profiler.views.tables.evidence import outcome
    from profiler.workflows.plan_comparison import doubted, listed, sentences

    comparison = planned.comparison
    if comparison is None:
        return []
    rows = [(plan.way.label, row) for plan in comparison.plans for row in (plan.measured, plan.predicted) if row]
    lines = [
        f"{label}: {outcome(row)}{': ' + row.detail if row.detail else ''}"
        for label, row in rows
        if row.outcome != "ok"
    ]
    notes = {note.code: note.text for plan in comparison.plans if plan.measured for note in plan.measured.notes}
    lines += [f"note: GCP004: {notes['GCP004']}"] if "GCP004" in notes else []
    if names := doubted(comparison.plans, planned.none.cost.step_seconds):
        more = "they compute" if len(names) > 1 else "it computes"
        lines.append(f"note: GCP061: {listed(names)} measured faster than without checkpointing, although {more} more")
    if comparison.chosen:
        lines += sentences(comparison.chosen)
    elif comparison.is_cut:
        lines.append("it ended before all of these were measured: no plan is chosen")
    elif comparison.is_timed:
        lines.append("none of these was measured to fit the budget: no plan is chosen")
    return [*lines, *([f"plans and records: {comparison.folder}"] if comparison.folder else [])]


def say_next(planned: Planned, words: list[str], *, budget: str, written: Path | None) -> None:
    """Print the next command; `written` is the file of the plan, if one was asked for."""
    has_calls = any("#" in block.name for stage in planned.chain.stages for block in stage.blocks)  # calls have no code
    if written is None and planned.comparison:
        written = planned.comparison.file
    if planned.comparison and planned.comparison.is_cut:
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
