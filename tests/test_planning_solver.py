"""The best plans, against files of a peer, brute force and closed forms."""

import json
from math import comb

import pytest
from msgspec.structs import replace

from profiler.planning import chain as chains
from profiler.planning.simulator import largest_stage
from profiler.planning.solver import best, frontier
from tests.planning_chains import FOLDER, NAMED, best_of_all, equal_stages, random_chain, same

SIZES = [8] + [7] * 6 + [6] * 28 + [5] * 65 + [4] * 80 + [3] * 70 + [2] * 30 + [1] * 20


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize(("levels", "kind"), [(1, "single_level"), (None, "nested")])
def test_the_frontiers_are_those_of_the_peer(name, levels, kind):
    chain = chains.read(FOLDER / f"{name}.stages.json")
    expected = json.loads((FOLDER / f"{name}.expected.json").read_text())[kind]

    found = frontier(chain, levels=levels)

    assert same(found, expected)
    assert found.lost_fraction == 0


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.nightly) for part in range(1, 20))])
def test_the_frontier_is_that_of_brute_force(part):
    for seed, number in list(enumerate(SIZES))[part::20]:
        chain = random_chain(seed, number)

        found = frontier(chain, levels=None)

        assert same(found, best_of_all(chain)), (seed, number)
        assert all(point.plan for point in found)


@pytest.mark.slow
@pytest.mark.parametrize("levels", [1, 2, 3, None])
def test_so_it_is_with_options_pins_and_limited_depth(levels):
    for seed in range(60):
        chain = random_chain(seed, 1 + seed % 5, options=2, pins=seed % 2 == 1)

        found = frontier(chain, levels=levels)

        assert same(found, best_of_all(chain, levels=levels)), seed
        assert all(point.plan for point in found)


@pytest.mark.slow
def test_no_plan_gets_below_the_largest_stage_at_work_and_many_reach_it():
    reached = 0
    for seed in range(300):
        chain = random_chain(seed, 1 + seed % 9, options=2, pins=bool(seed % 2))
        _, floor = largest_stage(chain)
        smallest = frontier(chain, levels=None).peak_bytes[0]

        assert floor <= smallest, seed
        reached += floor == smallest
    assert reached > 100


def test_what_stages_save_that_are_always_kept_is_in_the_floor_of_those_behind_them():
    chain = equal_stages(4, output=10, saved=100, own=90)
    stem, *others = chain.stages
    last = replace(others.pop(), saved_bytes=150, own_saved_bytes=140)
    chain = replace(chain, stages=(replace(stem, name="stem", pinned=True), *others, last))
    trained = replace(
        chain, stages=(chain.stages[0], replace(stem, gradient_bytes=50), replace(stem, gradient_bytes=7))
    )

    # the input, all of the stem, and of the last stage its input, what it saves, its output and the gradient of that
    assert largest_stage(chain)[1] == frontier(chain, levels=None).peak_bytes[0] == 10 + 100 + 10 + 150
    # of the second, whose input the stem saved: its own, and the gradients of its parameters and of the last one's
    assert largest_stage(trained)[1] == frontier(trained, levels=None).peak_bytes[0] == 10 + 100 + 100 + 50 + 7


@pytest.mark.parametrize("slots", range(1, 5))
@pytest.mark.parametrize("length", [1, 2, 3, 5, 6, 10, 15, 20, 24])
def test_equal_stages_take_the_forwards_of_revolve(length, slots):
    """Griewank and Walther 2000, proposition 1: slots hold the input and outputs besides the stage at work."""
    heavy = 100  # what a stage saved: two at a time do not fit, so every stage but the last is run again

    point = best(frontier(equal_stages(length, saved=1 + heavy, own=heavy), levels=None), slots + 2 + heavy)

    assert point.step_seconds == length + revolve(length, slots)  # each is also run right before its backward


def revolve(length: int, slots: int) -> int:
    """Forwards of a reversal: r l - C(c + r, c + 1) with the least r by which l <= C(c + r, c)."""
    runs = next(runs for runs in range(length + 1) if length <= comb(slots + runs, slots))
    return runs * length - comb(slots + runs, slots + 1)


@pytest.mark.slow
def test_thinned_frontiers_lose_no_more_than_they_say():
    for seed in range(20):
        chain = random_chain(seed, 14)
        exact, thinned = frontier(chain, levels=None), frontier(chain, levels=None, points=8)

        lost = max(point.step_seconds - best(exact, point.peak_bytes).step_seconds for point in [*thinned])
        assert 0 <= lost <= thinned.lost_fraction * exact.step_seconds[-1] + 1e-9
        assert exact.lost_fraction == 0 < thinned.lost_fraction
        assert len(thinned) <= 8
