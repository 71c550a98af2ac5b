"""Plans without a solver, against the peer's figures, and no better than the solver's."""

from itertools import pairwise
from math import inf

import pytest
from msgspec.structs import replace

from profiler.planning import simulator
from profiler.planning.chain import read, render
from profiler.planning.simulator import simulate
from profiler.planning.solver import frontier
from tests.planning_chains import FOLDER, NAMED, equal_stages, random_chain


@pytest.mark.parametrize(
    ("rule", "numbers", "free", "around_pins"),
    [
        (simulator.uniform, (3, 2), "[1-2] [3-4] 5-7", "1 [2-3] 4-7"),
        (simulator.uniform, (1, 1), "1-7", "1-7"),
        (simulator.first, (2, 3), "[1] [2] 3-7", "1 [2] [3] 4 [5] 6-7"),
        (simulator.every, (3, 2), "[1] 2-3 [4] 5-6 [7]", "1 [2] 3-4 [5] 6 [7]"),
        (simulator.all_stages, (), "[1] [2] [3] [4] [5] [6] [7]", "1 [2] [3] 4 [5] [6] [7]"),
    ],
)
def test_rules_are_what_their_names_say_and_go_round_pinned_stages(rule, numbers, free, around_pins):
    chain = equal_stages(7)
    stages = [replace(stage, pinned=number in (0, 3)) for number, stage in enumerate(chain.stages)]

    plans = rule(chain, *numbers[:1]), rule(replace(chain, stages=tuple(stages)), *numbers[1:])

    assert (*map(render, plans),) == (free, around_pins)


def test_what_no_plan_checkpoints_is_kept_before_the_stages_after_it():
    chain = equal_stages(4)
    first, second, third, last = (replace(stage, name=name) for stage, name in zip(chain.stages, "abcd", strict=True))
    pinned = [replace(stage, pinned=True, saved_bytes=nbytes) for stage, nbytes in ((second, 7), (last, 5))]
    chain = replace(chain, stages=(first, pinned[0], third, pinned[1]))

    assert [simulator.kept_before(chain, stage.name) for stage in chain.stages] == [0, 0, 7, 7]


def test_plans_that_are_equal_are_one_way_with_all_names():
    chain = equal_stages(4)
    points = frontier(chain, levels=1)

    ways = simulator.ways(chain, points.point(0).plan, simulate(chain, simulator.none(chain).plan).peak_bytes)

    assert len({render(way.plan) for way in ways}) == len(ways)
    assert ways[0].label == simulator.PLAN
    for way in ways:
        assert way.name == " = ".join([way.label, *way.same])
        assert way.is_catalogue == (way.label != simulator.PLAN or way.same != ())
        assert way.cost == simulate(chain, way.plan)


CHAINS = [*(read(FOLDER / f"{name}.stages.json") for name in NAMED), *(random_chain(seed, 9) for seed in range(12))]


def within(found, budget) -> float:
    """Seconds of the fastest within so many bytes; no plan is infinitely slow."""
    return (inf, *found.step_seconds)[sum(peak <= budget for peak in found.peak_bytes)]


@pytest.mark.parametrize("chain", CHAINS, ids=range(len(CHAINS)))
def test_deeper_is_no_slower_and_no_rule_beats_one_level(chain):
    nested, two, one = (frontier(chain, levels=levels) for levels in (None, 2, 1))

    for cost in (way.cost for kind in simulator.RULES for way in simulator.costed(chain, kind)):
        times = [within(found, cost.peak_bytes) for found in (nested, two, one)]

        assert all(deeper <= other + 1e-9 for deeper, other in pairwise([*times, cost.step_seconds]))
