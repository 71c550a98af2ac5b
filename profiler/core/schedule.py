"""Cases -> trials, in the order in which they are run: knows nothing of words or of engines."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from profiler.core.case import FAKE, OPERATORS, PASSES, Case, Trial


def measured(cases: Iterable[Case], rounds: int, *, predict: bool = False) -> tuple[Trial, ...]:
    """The cases in rounds; with `predict`, each is predicted besides, with what is read of the baseline's operators."""
    cases = list(cases)
    trials = in_rounds(cases, rounds)
    if not predict:
        return trials
    first = [_with_operators(trial) for trial in trials if trial.round == 1]
    twins = [msgspec.structs.replace(case, device=FAKE + case.twin.device) for case in cases]
    return (*first, *predicted(twins), *(trial for trial in trials if trial.round > 1))


def predicted(cases: Iterable[Case], *, calibrate: bool = False) -> tuple[Trial, ...]:
    """Each case once; with `calibrate`, the baselines are measured before, on a device of that kind."""
    cases = list(cases)
    real = dict.fromkeys(_measurable(case) for case in cases if case == case.baseline) if calibrate else ()
    passes = ("memory", OPERATORS, "time")
    return (
        *(Trial(case=case, passes=passes) for case in real),
        *(Trial(case=case, passes=("memory",)) for case in cases),
    )


def in_one_round(trials: Iterable[Trial], devices: Collection[str]) -> tuple[Trial, ...]:
    """The trials without the later rounds of cases on these devices, which have no times that more rounds could add."""
    return tuple(trial for trial in trials if trial.round == 1 or trial.case.device not in devices)


def _measurable(case: Case) -> Case:
    kind = case.twin.device
    return msgspec.structs.replace(case, device=f"{kind}:0" if kind == "cuda" else kind)


def _with_operators(trial: Trial) -> Trial:
    is_baseline = trial.case == trial.case.baseline
    return msgspec.structs.replace(trial, passes=(*trial.passes, OPERATORS)) if is_baseline else trial


def in_rounds(cases: Iterable[Case], rounds: int) -> tuple[Trial, ...]:
    """Rounds over all cases, every second one reversed, so that drift and heat favour none.

    Only the first round verifies and reads the memory, both exact; the others add samples of time.
    """
    forth = list(cases)
    return tuple(
        Trial(case=case, round=number, passes=PASSES if number == 1 else ("time",))
        for number in range(1, rounds + 1)
        for case in (forth if number % 2 else reversed(forth))
    )
