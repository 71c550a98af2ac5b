"""Files of chains, and what a plan costs."""

import json
from math import hypot

import pytest
from msgspec.structs import replace

from profiler.core.case import encode_indented
from profiler.core.errors import UserError
from profiler.planning.chain import Chain, SaveOption, Stage, option_names, read, render, with_sure_options
from profiler.planning.simulator import cost_limit, simulate, whole_bytes
from tests.planning_chains import FOLDER, NAMED, parse, random_chain

STAGE = {
    "name": "a",
    "forward_seconds": 0.1,
    "backward_seconds": 0.2,
    "output_bytes": 1,
    "saved_bytes": 3,
    "forward_extra_bytes": 0,
    "backward_extra_bytes": 0,
}
OPTION = {key: value for key, value in STAGE.items() if key != "output_bytes"}


@pytest.mark.parametrize("name", NAMED)
def test_a_plan_costs_what_the_peer_says(name):
    chain = read(FOLDER / f"{name}.stages.json")

    for one in json.loads((FOLDER / f"{name}.expected.json").read_text())["plans"]:
        plan = parse(one["plan"], len(chain.stages))
        cost = simulate(chain, plan)

        assert render(plan) == one["plan"]
        assert cost.peak_bytes == one["peak_bytes"] <= one["budget_bytes"]
        assert cost.step_seconds == pytest.approx(one["step_seconds"], abs=1e-9)


def test_a_chain_is_read_as_it_was_written(tmp_path):
    chain = random_chain(0, 9, options=2, pins=True)

    (tmp_path / "chain.json").write_bytes(encode_indented(chain))

    assert read(tmp_path / "chain.json") == chain


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        (json.dumps({"input_bytes": 1, "stages": [STAGE], "bugdet": 1}), "unknown field `bugdet`"),
        (json.dumps({"input_bytes": 1, "stages": [STAGE | {"saved_bytes": -3}]}), ">= 0"),
        ('{"input_bytes": 1, "stages": [{"name": "a", "forward_seconds": 1e999}]}', "out of range"),
        (json.dumps({"input_bytes": 1, "stages": [STAGE, STAGE]}), "called 'a'"),
        (json.dumps({"input_bytes": 1, "stages": [STAGE], "static_bytes": 5, "traced_peak_bytes": 4}), "5 are held"),
    ],
)
def test_a_damaged_file_is_refused_with_a_hint(tmp_path, text, said):
    path = tmp_path / "chain.json"
    path.write_text(text)

    with pytest.raises(UserError, match=said, check=lambda error: str(path) in error.message and error.hint):
        read(path)


def stage(**costs: float) -> Stage:
    return Stage(**(STAGE | costs))


def test_two_stages_by_hand():
    """Outputs 10 and 20, saved 15 and 28 without them; 3 and 5 more in a forward, 7 and 11 in a backward."""
    first = stage(output_bytes=10, saved_bytes=25, own_saved_bytes=15, forward_extra_bytes=3, backward_extra_bytes=7)
    second = stage(output_bytes=20, saved_bytes=48, own_saved_bytes=28, forward_extra_bytes=5, backward_extra_bytes=11)
    chain = Chain(input_bytes=100, stages=(first, second), static_bytes=1000)

    assert simulate(replace(chain, floor_bytes=9999), parse("1-2", 2)).peak_bytes == 9999
    kept, both, one = (simulate(chain, parse(text, 2)) for text in ("1-2", "[1-2]", "[1] 2"))

    assert kept.peak_bytes == 1000 + 100 + 25 + 20 + 28 + 11  # the second's backward, with its output's gradient
    assert both.peak_bytes == 1000 + 100 + 20 + 25 + 28 + 11
    assert one.peak_bytes == 1000 + 100 + 10 + 20 + 28 + 11
    assert [cost.step_seconds for cost in (kept, both, one)] == pytest.approx([0.6, 0.8, 0.7])


def test_the_last_stage_of_a_recompute_stops_early():
    first, second = stage(early_stop_seconds=0.06), stage(early_stop_seconds=0.07)
    chain = Chain(input_bytes=1, stages=(first, second))

    assert simulate(chain, parse("[1-2]", 2)).step_seconds == pytest.approx(0.6 + 0.1 + 0.07)
    assert simulate(chain, parse("[[1] 2]", 2)).step_seconds == pytest.approx(0.6 + 0.1 + 0.07 + 0.06)


def test_only_the_others_of_a_recompute_take_what_is_measured_of_runs():
    stages = [stage(inner_recompute_seconds=0.13, inner_error_seconds=0.02, error_seconds=0.05) for _ in range(3)]
    chain = Chain(input_bytes=1, stages=tuple(stages))

    alone, run, nested = (simulate(chain, parse(text, 3)) for text in ("[1] [2] [3]", "[1-3]", "[[1-2] 3]"))

    assert [cost.step_seconds for cost in (alone, run, nested)] == pytest.approx([1.2, 1.26, 1.2 + 0.1 + 0.13])
    assert [cost.error_seconds for cost in (alone, run, nested)] == pytest.approx(
        [0.15, hypot(0.05, 2 * 0.02), hypot(2 * 0.05, 0.02)]
    )


def test_the_step_without_checkpointing_fits_by_its_trace_whatever_its_costs():
    chain = Chain(input_bytes=1, stages=(stage(), stage()))
    whole = simulate(chain, parse("1-2", 2)).peak_bytes
    traced = replace(chain, traced_peak_bytes=whole - 2)

    assert (whole_bytes(chain), whole_bytes(traced)) == (whole, whole - 2)
    assert cost_limit(chain, whole - 2) == whole - 2
    assert [cost_limit(traced, whole + more) for more in (-3, -2, 1)] == [whole - 3, whole, whole + 1]


@pytest.mark.parametrize(
    ("added", "option_error", "error", "pinned", "is_left"),
    [
        (0.05, 0.0, 0.0, False, True),
        (0.2, 0.0, 0.0, False, True),  # costs without errors are the solver's to weigh
        (0.03, 0.03, 0.03, False, False),  # 0.03 + 0.042 is more than the 0.07 of a checkpoint
        (0.03, 0.03, 0.03, True, True),  # what cannot be checkpointed has no other way
    ],
)
def test_save_options_are_left_only_where_they_are_surely_faster_than_a_checkpoint(
    added, option_error, error, pinned, is_left
):
    times = {"backward_seconds": 0.2 + added, "error_seconds": option_error}
    options = tuple(SaveOption(**(OPTION | times | {"name": name})) for name in ("few", "other"))
    unsure = stage(options=options, early_stop_seconds=0.07, error_seconds=error, pinned=pinned)
    sure = Stage(**(STAGE | {"name": "c", "options": (SaveOption(**(OPTION | {"name": "other"})),)}))

    left = with_sure_options(Chain(input_bytes=1, stages=(unsure, sure)))

    assert left.stages[0].options == (options if is_left else ())
    assert left.stages[1] == sure
    assert option_names(left) == (("few", "other") if is_left else ("other",))
