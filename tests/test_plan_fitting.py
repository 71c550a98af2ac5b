"""Plans are settled by steps and judged by rounds: with an engine whose every answer is scripted."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from profiler.core import plan_file
from profiler.core.case import Trial
from profiler.core.record import Readings, Record
from profiler.planning import simulator
from profiler.planning.chain import Plan, read, render
from profiler.planning.simulator import simulate, ways
from profiler.planning.solver import best, frontier
from profiler.workflows import plan_fitting, planner
from profiler.workflows.stages import Step
from tests import make
from tests.planning_chains import FOLDER, parse, with_modules

MIB = 2**20

CHAIN = with_modules(read(FOLDER / "hetero12.stages.json"))
FRONTIER = frontier(CHAIN)
BUDGET = 848 * MIB
Answer = Callable[[Plan], int | None]


class Scripted:
    """An engine that answers with the peaks that it is told for each plan; it keeps what it was asked."""

    def __init__(self, traced: Answer, measured: Answer | None = None) -> None:
        self.answers = {True: traced, False: measured or traced}
        self.asked: list[tuple[bool, str]] = []

    def run(self, trials: Iterable[Trial], done: Iterable[Record] = ()) -> Iterator[Record]:
        for trial in trials:
            text = plan_file.read(Path(dict(trial.case.strategy.options)["file"])).plan
            self.asked.append((trial.case.is_predicted, text))
            peak = self.answers[trial.case.is_predicted](parse(text, len(CHAIN.stages)))
            outcome = "out_of_memory" if peak is None else "ok"
            yield make.record(case=trial.case, outcome=outcome, readings=Readings(peak_bytes=peak))


def by_costs(plan: Plan) -> int:
    return simulate(CHAIN, plan).peak_bytes


def fitted(engine: Scripted, budget: int = BUDGET, *, measure: bool = True, device: str = "cpu"):
    told: list[str] = []
    case = make.case(device=device)
    steps = plan_fitting.Steps(Step(case=case, engine=engine), CHAIN, passes=("memory",) if measure else ())
    found = plan_fitting.fit_plan(steps.run, FRONTIER, budget, is_rehearsed=case.is_rehearsed, say=told.append)
    return found, told


@pytest.mark.parametrize("measure", [True, False])
def test_what_a_step_needs_besides_is_kept_in_reserve_and_the_plan_made_again(measure):
    more = 40 * MIB

    found, told = fitted(Scripted(lambda plan: by_costs(plan) + more), measure=measure)

    assert found.reserve_bytes == more
    assert found.point == best(FRONTIER, BUDGET - more)
    assert found.point.peak_bytes + more <= BUDGET < best(FRONTIER, BUDGET).peak_bytes + more
    assert told == (["the plan was measured at 888 MiB, by its costs 848 MiB: planning again"] if measure else [])


def test_where_a_step_needs_less_than_its_stages_a_faster_plan_is_tried():
    found, _ = fitted(Scripted(lambda plan: by_costs(plan) - 60 * MIB))

    before = best(FRONTIER, BUDGET)
    assert found.point.step_seconds < before.step_seconds
    assert found.needed_bytes == found.point.peak_bytes - 60 * MIB <= BUDGET < found.point.peak_bytes


def test_between_the_smallest_plan_and_those_whose_memory_is_torn_a_faster_one_is_found():
    """Half of the plans that fit by their costs take twice the budget, as where memory is torn."""
    torn_from = (FRONTIER.peak_bytes[0] + BUDGET) // 2

    found, _ = fitted(Scripted(lambda plan: by_costs(plan) + (BUDGET if by_costs(plan) > torn_from else 0)))

    assert FRONTIER.peak_bytes[0] < found.point.peak_bytes <= torn_from


def test_before_no_plan_is_said_to_fit_those_by_rules_are_looked_at():
    rules = {render(found.plan) for kind in simulator.KINDS if (found := simulator.best_of(CHAIN, kind, BUDGET))}
    engine = Scripted(lambda plan: by_costs(plan) + (0 if render(plan) in rules else BUDGET))

    assert fitted(engine)[0] is None
    found = plan_fitting.fit_rule(plan_fitting.Steps(Step(case=make.case(), engine=engine), CHAIN).run, CHAIN, BUDGET)

    assert render(found.point.plan) in rules
    assert found.by_rule


@pytest.mark.parametrize("room", [600 * MIB, 840 * MIB])
def test_a_plan_that_the_device_has_no_room_for_is_made_again(room):
    engine = Scripted(by_costs, lambda plan: by_costs(plan) if by_costs(plan) <= room else None)

    found, told = fitted(engine)

    assert FRONTIER.peak_bytes[0] < found.point.peak_bytes <= room
    assert found.reserve_bytes == 0
    assert told[0] == "the device has no room for a plan of 848 MiB: planning again"


@pytest.mark.parametrize("measure", [True, False])
def test_a_plan_for_a_gpu_that_is_rehearsed_fits_by_its_rehearsed_step_alone(measure):
    more = 40 * MIB
    engine = Scripted(by_costs, lambda plan: by_costs(plan) + more)

    found, _ = fitted(engine, measure=measure, device="rehearse:t4")

    assert found.needed_bytes == found.point.peak_bytes + more <= BUDGET
    assert {predicted for predicted, _ in engine.asked} == {False}
    (record,) = found.records
    assert record.readings.peak_bytes == found.needed_bytes


def test_each_way_is_measured_in_rounds_and_predicted_once(tmp_path):
    found = ways(CHAIN, best(FRONTIER, BUDGET).plan, BUDGET)

    cases, trials, files = planner.paired_trials(make.case(), CHAIN, found, tmp_path, rounds=3)

    measured = [trial for trial in trials if not trial.case.is_predicted]
    assert list(cases) == ["none", "plan", "uniform(7)", "all"]
    assert sorted(path.name for path in files) == ["all.json", "plan.json", "uniform-7.json"]
    assert len(trials) == 4 + 3 * 3 + 4  # each verified, three plans in three rounds of times, and each predicted
    assert [trial.round for trial in measured] == [1] * 4 + [2] * 3 + [3] * 3 + [4] * 3
    assert {trial.passes for trial in measured[:4]} == {("equality", "memory")}
    assert {trial.passes for trial in measured if trial.round > 1} == {("time",)}
