"""Plans with inputs in host memory: their costs by arithmetic, and the best of them by brute force."""

from collections.abc import Iterator
from itertools import product

import pytest
from msgspec.structs import replace

from profiler.planning.chain import Chain, Plan, host_bytes, plan_file_of, render
from profiler.planning.simulator import largest_stage, simulate
from profiler.planning.solver import best, frontier
from profiler.workflows import plan_fitting
from tests.planning_chains import equal_stages, every_plan, lower_envelope, random_chain, same, with_modules

RATES = (1e3, 4e3, 16e3, 64e3)  # bytes per second, where a stage's output is of about 6 bytes, and its forward of 5 ms
SIZES = [6] * 4 + [5] * 26 + [4] * 90 + [3] * 100 + [2] * 50 + [1] * 30
OPTIONS = {6: 1, 5: 2}  # of each stage at most, so that brute force ends; of shorter chains 4


def equal(number: int, *, copy_seconds: float = 1.0, **at: dict[str, int]) -> Chain:
    """Stages of a second forward and two backward, whose outputs take so long to copy; `s2` are costs of stage 2."""
    chain = equal_stages(number, output=10, saved=110, own=100)
    stages = [replace(stage, backward_seconds=2.0) for stage in chain.stages]
    for name, costs in at.items():
        stages[int(name[1:])] = replace(stages[int(name[1:])], **costs)
    return replace(chain, input_bytes=0, stages=tuple(stages), host_rate=10 / copy_seconds)


# --- times: what is not covered by the stages that run meanwhile is waited for


@pytest.mark.parametrize(
    ("items", "offloaded", "copy_seconds", "waited"),
    [
        ((0, (1,), 2), (1,), 1.0, 0),
        ((0, (1,), 2), (1,), 3.0, 2 + 1),  # and behind the backward of the next stage, which takes two
        ((0, (1,), (2,), 3), (1,), 3.0, 2 + 0),  # recompute and backward of a run of one stage
        ((0, (1,), (2, 3), 4), (1,), 3.0, 2 + 1),  # of a longer run only the backward of its first stage
        ((0, (1,), (2,), 3), (1, 2), 4.0, 3 + 3 + 2 + 1),  # the second fetch begins after the first
    ],
)
def test_a_step_waits_for_what_a_copy_takes_longer_than_the_stages_beside_it(items, offloaded, copy_seconds, waited):
    number = items[-1] + 1
    recomputed = sum(len(item) for item in items if isinstance(item, tuple))

    cost = simulate(equal(number, copy_seconds=copy_seconds), Plan(items=items, offloaded=offloaded))

    assert cost.step_seconds == pytest.approx(3 * number + recomputed + waited)


# --- bytes: an input is on the device until its run's forward ends, and from the backward of the stage after the run


@pytest.mark.parametrize(
    ("costs", "peak"),
    [
        ({"s1": {"plain_forward_extra_bytes": 500}}, 110 + 10 + 500),  # it is not away yet
        ({"s2": {"backward_extra_bytes": 500}}, 100 + 10 + 100 + 10 + 10 + 500),  # it is back, with a gradient
        ({"s2": {"backward_extra_bytes": -50}}, 100 + 10 + 100 + 10 + 10),  # what is fetched is there before it frees
        ({"s0": {"own_saved_bytes": 110}, "s2": {"forward_extra_bytes": 500}}, 110 + 10 + 110 + 500),  # saved anyway
    ],
)
def test_an_input_in_host_memory_is_not_on_the_device_between(costs, peak):
    assert simulate(equal(3, **costs), Plan(items=(0, (1,), 2), offloaded=(1,))).peak_bytes == peak


def named(chain: Chain) -> Chain:
    return with_modules(chain, *(f"{place}.a {place}.b" for place in range(len(chain.stages))))


def test_a_plan_file_says_at_which_block_an_input_is_fetched():
    plan = Plan(items=(0, (1, 2), 3), offloaded=(1,))

    file = plan_file_of(named(equal(4)), plan)

    assert file.plan == render(plan) == "1 [2-3]:host 4"
    assert [segment.fetched_at for segment in file.segments] == ["3.b"]
    assert (file.schema, plan_file_of(named(equal(4)), Plan(items=(0, (1, 2), 3), offloaded=())).schema) == (2, 1)


def test_nothing_is_fetched_where_the_backward_reaches_no_block():
    chain = with_modules(equal(4, s2={"pinned": True}), "a", "b", "", "d")

    assert all(1 not in point.plan.offloaded for point in frontier(chain, offload=True))
    for wrong, noun in (((1,), "block"), ((0,), "segments")):
        with pytest.raises(ValueError, match=noun):
            simulate(chain, Plan(items=(0, (1,), 2, 3), offloaded=wrong))


def chain_of(seed: int, number: int) -> Chain:
    chain = random_chain(seed, number, options=OPTIONS.get(number, 4), pins=seed % 3 == 0)
    return replace(chain, host_rate=RATES[seed % 4] * (1 if seed % 2 else 99_991))


def every_offloading(chain: Chain) -> Iterator[Plan]:
    for plan in every_plan(chain, levels=1):
        between = [item[:1] for item in plan.items[1:-1] if isinstance(item, tuple)]
        for chosen in product(*(((), first) for first in between)):
            yield replace(plan, offloaded=sum(chosen, ()))


def differs(chain: Chain, waiting: int | None = None) -> bool:
    """Whether the solver's frontier is not that of brute force; its plans are simulated too."""
    plans = (plan for plan in every_offloading(chain) if all(first < (waiting or 9) for first in plan.offloaded))
    expected = lower_envelope(simulate(chain, plan) for plan in plans)
    found = frontier(chain, offload=True, waiting=waiting)
    assert largest_stage(chain)[1] <= found.peak_bytes[0]
    return not (all(point.plan for point in found) and same(found, expected))


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=[] if part in (4, 5) else pytest.mark.slow) for part in range(30)]
)
def test_the_frontier_is_that_of_brute_force(part):
    for seed, number in list(enumerate(SIZES))[part::30]:
        assert not differs(chain_of(seed, number)), (seed, number)


def test_so_it_is_where_inputs_that_are_sent_or_fetched_set_the_peak_and_where_few_may_wait():
    for costs in ({"plain_forward_extra_bytes": 300}, {"backward_extra_bytes": -100}):
        assert not differs(equal(5, copy_seconds=0.5, **{f"s{place}": costs for place in range(1, 5)}))
    for seed in range(9):
        assert not differs(chain_of(seed, 5), 1 + seed % 3), seed


@pytest.mark.parametrize(("most", "number"), [(20, None), (36, 2), (None, 5)])
def test_offered_plans_take_at_most_so_much_host_memory(most, number):
    """Five inputs of 9 MiB could wait, each in 16 MiB of pinned memory, and two must for the plan to fit."""
    chain = named(equal_stages(8, output=9 << 20, saved=110 << 20, own=100 << 20))
    budget = largest_stage(chain)[1] + (40 << 20)

    points = plan_fitting.offloading(plan_fitting.copied(chain, "h100"), budget, None if most is None else most << 20)
    point = best(points, budget)

    assert (point and len(point.plan.offloaded)) == number
    assert point is None or host_bytes(chain, point.plan) == number * 16 << 20
