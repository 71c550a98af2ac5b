"""`gcprof plan`: budgets, frontiers, files, refusals, and plans that are run, really or by a script."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from profiler.cli import answer
from profiler.core import plan_file
from profiler.core.case import Trial, encode_indented
from profiler.core.record import Readings, Record
from profiler.planning import chain as chains
from profiler.planning import simulator
from profiler.planning.chain import Plan, render
from profiler.planning.plan_code import emit
from profiler.planning.simulator import simulate, ways
from profiler.planning.solver import best, frontier
from profiler.runs import store
from profiler.workflows import plan_fitting, planner
from profiler.workflows.planner import file_of
from profiler.workflows.stages import Step
from tests import make
from tests.make import MIB
from tests.planning_chains import FOLDER, equal_stages, parse, with_modules
from tests.program import modules_after, next_words

pytestmark = pytest.mark.usefixtures("shared")

COSTS = FOLDER / "hetero12.stages.json"
CHAIN = chains.read(COSTS)
FRONTIER = frontier(CHAIN)
WHOLE = 1424 * MIB  # its peak without checkpointing


def plan(*words: object) -> int:
    return answer(["plan", *map(str, words)])


def test_one_document_holds_the_frontier_and_the_fastest_plan_that_fits(capsys):
    assert plan("--stages", COSTS, "--budget", "60%", "--json") == 0

    found = json.loads(capsys.readouterr().out)
    point = best(FRONTIER, found["budget_bytes"])
    assert (found["budget_bytes"], found["ways"][0]["way"]) == (int(0.6 * WHOLE), "plan")
    assert (found["ways"][0]["peak_bytes"], parse(found["ways"][0]["plan"], 12)) == (point.peak_bytes, point.plan)
    assert (found["schema"], found["model"], found["largest_stage"]) == (1, None, "c1")
    assert found["uncheckpointed"]["peak_bytes"] == WHOLE
    assert found["floor_bytes"] == 536 * MIB
    assert all(list(one) == ["peak_bytes", "step_seconds", "plan"] for one in found["frontier"])
    assert [(one["peak_bytes"], one["step_seconds"], parse(one["plan"], 12)) for one in found["frontier"]] == [
        (one.peak_bytes, one.step_seconds, one.plan) for one in FRONTIER
    ]


def test_a_plan_file_names_its_modules_replaces_what_is_there_by_force_alone_and_gives_its_code_without_torch(
    here, capsys
):
    (here / "named.json").write_bytes(encode_indented(with_modules(CHAIN)))
    words = ("--stages", "named.json", "--budget", "60%")
    Path("plan.json").write_text("mine")
    assert plan(*words, "-o", "plan.json") == 2
    assert Path("plan.json").read_text() == "mine"

    assert plan(*words, "-o", "plan.json", "--force") == 0

    found = plan_file.read(Path("plan.json"))
    assert parse(found.plan, 12) == best(FRONTIER, int(0.6 * WHOLE)).plan
    assert [name for segment in found.segments for name in segment.blocks] == ["stem", "c1", "pool", "c2"]  # [1-4] 5-12
    assert list(found.fingerprint) == [stage.name for stage in CHAIN.stages]
    capsys.readouterr()
    assert plan(*words, "--emit", "python") == 0
    planned = capsys.readouterr().out
    printing = ["plan", "--from", "plan.json", "--emit", "python"]
    assert answer(printing) == 0
    assert capsys.readouterr().out == planned
    assert not {"torch", "torchvision"} & modules_after(" ".join(printing))
    plan_file.write(replace(found, levers=("chunk-loss",)), Path("plan.json"))  # without which it does not fit
    assert answer(printing) == 2


@pytest.mark.parametrize("depth", [1, 2])
def test_a_budget_below_one_level_gets_checkpoints_within_checkpoints(here, capsys, depth):
    """Eight stages of a byte each that save ten: the smallest peak of one level, and that of two, which is less."""
    chain = equal_stages(8, saved=10, own=9)
    chain = replace(chain, stages=tuple(replace(one, name=f"s{at}") for at, one in enumerate(chain.stages)))
    (here / "nested.json").write_bytes(encode_indented(chain))

    budget = frontier(chain, levels=depth).peak_bytes[0]
    assert plan("--stages", "nested.json", "--budget", f"{budget}B", "--json") == 0

    assert parse(json.loads(capsys.readouterr().out)["ways"][0]["plan"], 8).is_nested == (depth == 2)


def test_a_budget_that_no_plan_fits_ends_with_5_and_names_what_sets_it(capsys):
    assert plan("--stages", COSTS, "--budget", "535MiB") == 5

    said = capsys.readouterr()
    assert said.out == ""
    assert "the smallest peak is 536 MiB\n'c1' needs 536 MiB alone" in said.err
    assert plan("--stages", COSTS, "--budget", "536MiB") == 0


WORDS = ("transformer:layers=4,width=32", "--batch-size", "2", "--device", "cpu")


@pytest.mark.nightly
def test_a_plan_is_measured_beside_its_rivals_and_can_be_run(here, capsys):
    assert plan(*WORDS, "--budget", "60%", "--rounds", 1, "--json", "-o", "plan.json") == 0

    said = capsys.readouterr()
    found = json.loads(said.out)
    assert [way["way"] for way in found["ways"]][:: len(found["ways"]) - 1] == ["plan", "all"]
    assert found["budget_bytes"] == int(0.6 * found["uncheckpointed"]["peak_bytes"])
    for way in found["ways"]:
        assert way["outcome"] == "ok"
        assert way["gradients"] == "bit-equal"
        assert way["measured_peak_bytes"] == way["predicted_peak_bytes"]
        assert way["measured_time_ratio"] > 0
    (folder,) = (here / "results").glob("*plan*")
    run = store.load(folder)
    assert set(run.manifest.sources) == {str(path) for path in (Path("results") / run.folder.name / "plans").iterdir()}
    assert run.manifest.sources == store.code_digests(trial.case for trial in run.manifest.plan)
    (chosen,) = (way for way in found["ways"] if way["chosen"])
    assert chosen["measured_peak_bytes"] <= found["budget_bytes"]
    assert plan_file.read(file_of(run.folder, chosen["way"])) == plan_file.read(Path("plan.json"))
    words = next_words(said.err)
    assert words == ["plan", "--from", "plan.json", "--emit", "python"]
    assert answer(words) == 0
    assert capsys.readouterr().out == emit(plan_file.read(Path("plan.json")), "python")

    again = ("--strategies", "none,plan:file=plan.json", "--rounds", "1", "--samples", "1", "--json", "-o", "again")
    assert answer(["run", *WORDS, *again]) == 0

    none, planned = json.loads(capsys.readouterr().out)["records"]
    assert planned["readings"]["peak_bytes"] == chosen["measured_peak_bytes"]
    assert none["readings"]["peak_bytes"] > found["budget_bytes"] >= planned["readings"]["peak_bytes"]


# --- plans are settled by steps and judged by rounds: with an engine whose every answer is scripted


NAMED = with_modules(CHAIN)
NAMED_FRONTIER = frontier(NAMED)
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
            peak = self.answers[trial.case.is_predicted](parse(text, len(NAMED.stages)))
            outcome = "out_of_memory" if peak is None else "ok"
            yield make.record(case=trial.case, outcome=outcome, readings=Readings(peak_bytes=peak))


def by_costs(plan: Plan) -> int:
    return simulate(NAMED, plan).peak_bytes


def fitted(engine: Scripted, budget: int = BUDGET, *, measure: bool = True, device: str = "cpu"):
    told: list[str] = []
    case = make.case(device=device)
    steps = plan_fitting.Steps(Step(case=case, engine=engine), NAMED, passes=("memory",) if measure else ())
    found = plan_fitting.fit_plan(steps.run, NAMED_FRONTIER, budget, is_rehearsed=case.is_rehearsed, say=told.append)
    return found, told


@pytest.mark.parametrize("measure", [True, False])
def test_what_a_step_needs_besides_is_kept_in_reserve_and_the_plan_made_again(measure):
    more = 40 * MIB

    found, told = fitted(Scripted(lambda plan: by_costs(plan) + more), measure=measure)

    assert found.reserve_bytes == more
    assert found.point == best(NAMED_FRONTIER, BUDGET - more)
    assert found.point.peak_bytes + more <= BUDGET < best(NAMED_FRONTIER, BUDGET).peak_bytes + more
    assert told == (["the plan was measured at 888 MiB, by its costs 848 MiB: planning again"] if measure else [])


def test_where_a_step_needs_less_than_its_stages_a_faster_plan_is_tried():
    found, _ = fitted(Scripted(lambda plan: by_costs(plan) - 60 * MIB))

    assert found.point.step_seconds < best(NAMED_FRONTIER, BUDGET).step_seconds
    assert found.needed_bytes == found.point.peak_bytes - 60 * MIB <= BUDGET < found.point.peak_bytes


def test_between_the_smallest_plan_and_those_whose_memory_is_torn_a_faster_one_is_found():
    """Half of the plans that fit by their costs take twice the budget, as where memory is torn."""
    torn_from = (NAMED_FRONTIER.peak_bytes[0] + BUDGET) // 2

    found, _ = fitted(Scripted(lambda plan: by_costs(plan) + (BUDGET if by_costs(plan) > torn_from else 0)))

    assert NAMED_FRONTIER.peak_bytes[0] < found.point.peak_bytes <= torn_from


def test_before_no_plan_is_said_to_fit_those_by_rules_are_looked_at():
    rules = {render(found.plan) for kind in simulator.KINDS if (found := simulator.best_of(NAMED, kind, BUDGET))}
    engine = Scripted(lambda plan: by_costs(plan) + (0 if render(plan) in rules else BUDGET))

    assert fitted(engine)[0] is None
    found = plan_fitting.fit_rule(plan_fitting.Steps(Step(case=make.case(), engine=engine), NAMED).run, NAMED, BUDGET)

    assert render(found.point.plan) in rules
    assert found.by_rule


@pytest.mark.parametrize("room", [600 * MIB, 840 * MIB])
def test_a_plan_that_the_device_has_no_room_for_is_made_again(room):
    found, told = fitted(Scripted(by_costs, lambda plan: by_costs(plan) if by_costs(plan) <= room else None))

    assert NAMED_FRONTIER.peak_bytes[0] < found.point.peak_bytes <= room
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
    found = ways(NAMED, best(NAMED_FRONTIER, BUDGET).plan, BUDGET)

    cases, trials, files = planner.paired_trials(make.case(), NAMED, found, tmp_path, rounds=3)

    measured = [trial for trial in trials if not trial.case.is_predicted]
    assert list(cases) == ["none", "plan", "uniform(7)", "all"]
    assert sorted(path.name for path in files) == ["all.json", "plan.json", "uniform-7.json"]
    assert len(trials) == 4 + 3 * 3 + 4  # each verified, three plans in three rounds of times, and each predicted
    assert [trial.round for trial in measured] == [1] * 4 + [2] * 3 + [3] * 3 + [4] * 3
    assert {trial.passes for trial in measured[:4]} == {("equality", "memory")}
    assert {trial.passes for trial in measured if trial.round > 1} == {("time",)}
