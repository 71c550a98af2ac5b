"""Steps of a model or a run, traced or rehearsed, and what holds their peak: `gcprof explain`, `gcprof timeline`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from profiler import engines
from profiler.analysis import explanation
from profiler.analysis.explanation import Explanation
from profiler.analysis.live_bytes import peak
from profiler.analysis.progress import calibrations
from profiler.core import device_choice
from profiler.core.case import Case, Trial, split_choices
from profiler.core.errors import UserError
from profiler.core.plan_file import strategy_label
from profiler.core.record import Record, evidence
from profiler.core.trace_data import Followed
from profiler.core.units import batch_text
from profiler.engines import Engine
from profiler.runs import is_run, run_folder, store
from profiler.views.tables.columns import device_word, optimizer
from profiler.workflows import SILENT, Screen, spec
from profiler.workflows.resume import refuse_cases
from profiler.workflows.spec import Request
from profiler.workflows.stages import followed, for_gpus


class FollowedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step, traced or rehearsed as its case says, and the record of the same case, where a run was named."""

    case: Case
    followed: Followed
    record: Record | None
    half_batch_bytes: int | None = None  # the peak with half the batch, if that was rehearsed


def explain(target: str, words: Request, screen: Screen = SILENT) -> tuple[FollowedStep, Explanation]:
    """Return the last step and where its peak is and why it is no lower, compared with the first step.

    Raises UserError, also if more than one strategy is named besides `none`.
    """
    named = [choice for choice in spec.strategies_of(words) if choice != "none"]
    if len(named) > 1:
        hint = f"name one of {', '.join(named)}; gcprof timeline draws several"
        raise UserError("only one strategy can be explained at once", hint=hint)
    steps = followed_steps(target, words, screen, with_choices=True)
    chosen = steps[-1]
    batch_size, half_bytes = chosen.case.batch_size, chosen.half_batch_bytes
    step, baseline = chosen.followed, steps[0].followed
    return chosen, explanation.explain(step, baseline, batch_size=batch_size, half_batch_bytes=half_bytes)


def heading(case: Case, step: Followed, *, with_strategy: bool = False, is_assumed: bool = False) -> str:
    """Return the model and settings that were followed, and how, in one line."""
    named = [str(case.label)] if with_strategy else []
    how = " (assumed)" if is_assumed and not step.has_own_optimizer else ""
    at_work = f"{optimizer(case, is_own=step.has_own_optimizer)}{how}"
    precision = [case.precision] if case.precision != "fp32" else []
    settings = ", ".join([*named, batch_text(case.batch_size), at_work, *precision, device_word(case.device)])
    return f"{case.model}, {settings}: {evidence(case, None)}"


def assumed(step: Followed) -> list[str]:
    """Return what is to be said of a step whose optimizer nobody named: nothing where the model brings its own."""
    end = len(step.trace.operators)
    gradients = [one for one in step.trace.allocations if one.category == "gradients" and one.died >= end]
    nbytes = sum(one.nbytes - one.unsplit for one in gradients)  # the rest of a block is not of the gradient
    return [] if step.has_own_optimizer else [spec.assumed_text(nbytes)]


def followed_steps(
    target: str, words: Request, screen: Screen = SILENT, *, with_choices: bool = False
) -> list[FollowedStep]:
    """Return the steps of the model `target`, or of the cases of the run of that name, by strategy; `none` first.

    `words` have the strategies, and the device as it was typed. `with_choices` also
    evaluates other blocks in the step of `none`. Cases that a run has measured or predicted are traced, those that it
    has rehearsed are rehearsed. Raises UserError if there is no such model, run or strategy, or if a step cannot be
    followed.
    """
    records = None  # of the run with the target's name
    if target == "last" or is_run(target):
        if words != Request(device=device_choice.SEVERAL, strategies=words.strategies, segments=words.segments):
            raise UserError("a run has its own model and settings", hint="choose among its rows with --strategies")
        records = store.load(run_folder(target)).records
    if records is None:
        device = for_gpus(words.device or device_choice.SEVERAL, say=screen.say, is_estimated=words.routing is not None)
        words = msgspec.structs.replace(words, model=target, device=device)
        trials = list(spec.check(words, device_choice.any_device).trials)
    else:
        trials = _trials_of_run(records, target, words)
    if any(trial.case.ranks for trial in trials):
        hint = "gcprof show has what each of them holds"
        raise UserError("what ranks gather for each other has no floor yet: it cannot be explained", hint=hint)
    settings = {trial.case.baseline for trial in trials}
    if len(settings) > 1:
        raise UserError("only one model, batch size and precision can be followed at once", hint="name one of each")
    with screen.doing("tracing"), engines.connect(plan=trials) as engine:
        engine.at_work = screen.at_work
        steps = []
        for place, trial in enumerate(trials, start=1):
            screen.at_work(f"step {place} of {len(trials)}: {strategy_label(trial.case.label)}")
            step = followed(engine, trial, with_choices=with_choices and trial.case == trial.case.baseline)
            of_case = (one for one in records or () if one.case.twin == trial.case.twin and not one.case.is_predicted)
            known = next((one for one in of_case if not trial.case.is_rehearsed or one.case == trial.case), None)
            steps.append(FollowedStep(case=trial.case, followed=step, record=known))
        if with_choices:
            steps[-1] = msgspec.structs.replace(steps[-1], half_batch_bytes=_half_batch_bytes(engine, trials[-1]))
        return steps


def _trials_of_run(records: Sequence[Record], target: str, words: Request) -> list[Trial]:
    """Return trials of the first case's settings under these strategies; traced ones get the run's calibration."""
    if not records:
        hint = "let it run to its end: gcprof run --resume"
        raise UserError(f"'{target}' has no records yet", hint=hint, exit_code=4)
    first = records[0].case.baseline
    cases = list(dict.fromkeys(record.case for record in records if record.case.twin.baseline == first.twin))
    measured = [case.label for case in cases]
    labels = {strategy_label(label): label for label in measured}  # as tables print them: uniform(4)
    typed = split_choices(words.strategies or "none")
    rest = [choice for choice in typed if choice not in labels]
    of_rest = msgspec.structs.replace(words, strategies=",".join(rest) or ("none" if words.strategies else None))
    wanted = [*(labels[choice] for choice in typed if choice in labels), *spec.strategies_of(of_rest)]
    for choice in wanted:
        if choice not in measured:
            raise UserError(f"'{choice}' is not a row of this run", hint=f"it has {', '.join(dict.fromkeys(measured))}")
    chosen = [case for case in cases if case == case.baseline or case.label in wanted]
    refuse_cases(chosen, target, named=wanted)
    followed = [case if case.is_rehearsed else case.foreseen for case in chosen]
    calibrated = calibrations(records)
    return [
        Trial(case=case, calibration=None if case.is_rehearsed else calibrated.get(case.baseline.twin))
        for case in dict.fromkeys(followed)
    ]


def _half_batch_bytes(engine: Engine, trial: Trial) -> int | None:
    """Return the peak of a rehearsed step with half its batch; None for an estimate, or a batch that has no half."""
    size = trial.case.batch_size
    if not trial.case.is_rehearsed or trial.case.ranks or size is None or size % 2:
        return None
    half = msgspec.structs.replace(trial.case, batch_size=size // 2)
    try:
        return peak(followed(engine, msgspec.structs.replace(trial, case=half)).trace).nbytes
    except UserError:  # a model may refuse such a batch
        return None


def peak_place(engine: Engine, case: Case) -> str:
    """Return the phase of a followed step's peak, and its module or line of code; nothing if it cannot be followed."""
    try:
        trace = followed(engine, Trial(case=case)).trace
    except UserError:  # a step whose inputs wait in host memory, for example
        return ""
    top = peak(trace)
    made = [one for one in trace.allocations if one.born == top.number]
    is_users = ".py:" in case.model
    line = max(made, key=lambda one: one.nbytes).line if made and is_users else ""
    return ", ".join(filter(None, (top.phase, top.module, line)))
