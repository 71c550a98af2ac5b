"""`gcprof plan`: budgets, frontiers, files, refusals, and plans that are really run."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from profiler.cli import answer
from profiler.core import plan_file
from profiler.core.case import encode_indented
from profiler.planning import chain as chains
from profiler.planning.plan_code import emit
from profiler.planning.solver import best, frontier
from profiler.runs import store
from profiler.workflows.planner import file_of
from tests.planning_chains import FOLDER, equal_stages, parse, with_modules
from tests.program import modules_after, next_words

pytestmark = pytest.mark.usefixtures("shared")

MIB = 2**20
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
    code = plan("--stages", COSTS, "--budget", "535MiB")

    said = capsys.readouterr()
    assert code == 5
    assert said.out == ""
    assert "the smallest peak is 536 MiB\n'c1' needs 536 MiB alone" in said.err
    assert plan("--stages", COSTS, "--budget", "536MiB") == 0


WORDS = ("transformer:layers=4,width=32", "--batch-size", "2", "--device", "cpu")


@pytest.mark.nightly
def test_a_plan_is_measured_beside_its_rivals_and_can_be_run(here, capsys):
    code = plan(*WORDS, "--budget", "60%", "--rounds", 1, "--json", "-o", "plan.json")

    said = capsys.readouterr()
    found = json.loads(said.out)
    assert code == 0
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
