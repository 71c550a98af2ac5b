"""Which measured way is taken, what is said of it, and that it agrees with the table: with samples that are planted."""

from random import Random

import pytest
from msgspec.structs import replace

from profiler.analysis.rows import rows
from profiler.planning.chain import Chain, Plan, SaveOption, Stage
from profiler.planning.simulator import Way, all_stages, first, none, simulate, slower_by, uniform
from profiler.views.tables.plans import ComparedPlan
from profiler.workflows.planner import choose, doubted, sentence
from tests import make

MIB = 2**20
BUDGET = 60 * MIB
STEP = 1.0


def chain(error: float = 0.0) -> Chain:
    """Six equal blocks, whose recomputes take a third of them, and less where their matmuls are kept."""
    option = SaveOption(
        name="matmul", saved_bytes=5 * MIB, own_saved_bytes=4 * MIB, forward_extra_bytes=0, backward_extra_bytes=0,
        forward_seconds=1.0, backward_seconds=2.6, error_seconds=error,
    )  # fmt: skip
    stages = tuple(
        Stage(
            name=f"b{number}", forward_seconds=1.0, backward_seconds=2.0, early_stop_seconds=1.0, output_bytes=MIB,
            saved_bytes=9 * MIB, own_saved_bytes=8 * MIB, forward_extra_bytes=0, backward_extra_bytes=0,
            error_seconds=error, options=(option,),
        )
        for number in range(6)
    )  # fmt: skip
    return Chain(input_bytes=0, stages=stages)


CHAIN = chain()
KEPT = Plan(items=tuple(range(6)), options=tuple((number, "matmul") for number in range(6)))
PLANS = {"plan": KEPT, "uniform(5)": uniform(CHAIN, 5), "first(4)": first(CHAIN, 4), "all": all_stages(CHAIN)}


def compared(ratios: dict[str, tuple[float, ...]], peaks: dict[str, int]):
    """Ways with these ratios in the rounds, and these peaks in MiB."""
    rounds = range(1, 1 + len(next(iter(ratios.values()))))
    records = [make.record(peak=64 * MIB, seconds=(STEP,), round=number) for number in rounds]
    for label, of_rounds in ratios.items():
        records += [
            make.record(label.replace("(", "").strip(")"), peak=peaks[label] * MIB, seconds=(STEP * ratio,), round=at)
            for at, ratio in zip(rounds, of_rounds, strict=True)
        ]
    measured = {str(row.case.strategy): row for row in rows(records)}
    return [
        ComparedPlan(
            way=Way(label=label, plan=PLANS[label], cost=simulate(CHAIN, PLANS[label])),
            measured=measured[label.replace("(", "").strip(")")],
        )
        for label in ratios
    ]


def test_a_plan_that_was_measured_slower_and_larger_than_a_rival_is_not_taken():
    """The costs said -12 % of the plan with kept matmuls; +52 % was measured, and +35 % of a split in less memory."""
    plans = compared(
        {"plan": (1.50, 1.52, 1.53, 1.55), "uniform(5)": (1.33, 1.34, 1.36, 1.37)}, {"plan": 41, "uniform(5)": 31}
    )

    chosen = choose(plans, CHAIN, BUDGET)

    assert chosen[0].way.label == "uniform(5)"
    assert sentence(chosen).startswith("uniform(5) is chosen: no other plan that fits is faster")


def test_what_neither_times_nor_costs_tell_apart_is_taken_by_its_simplicity():
    noisy = chain(error=0.5)
    plans = compared(
        {"plan": (0.4, 1.2, 2.0, 3.1), "uniform(5)": (0.35, 1.1, 2.1, 2.9)}, {"plan": 41, "uniform(5)": 31}
    )

    chosen = choose(plans, noisy, BUDGET)

    assert [plan.way.label for plan in chosen] == ["uniform(5)", "plan"]
    assert sentence(chosen) == "uniform(5) is chosen: its time cannot be told apart from plan, and it is the simplest"


@pytest.mark.parametrize("seed", range(20))
def test_nothing_that_fits_was_surely_faster_than_what_is_taken(seed):
    draw = Random(seed)
    ratios = {
        label: tuple(draw.lognormvariate(draw.uniform(0, 0.3), draw.choice((0.01, 0.2))) for _ in range(4))
        for label in PLANS
    }
    plans = compared(ratios, {label: draw.randint(20, 70) for label in PLANS})

    chosen = choose(plans, CHAIN, BUDGET)

    fitting = [plan for plan in plans if plan.measured.readings.peak_bytes <= BUDGET]
    assert bool(chosen) == bool(fitting)
    for plan in fitting:
        assert not max(ratios[plan.way.label]) < min(ratios[chosen[0].way.label])


def test_a_step_that_computes_more_and_was_measured_faster_is_doubted():
    plans = compared({"plan": (0.33, 0.35, 0.37), "uniform(5)": (1.3, 1.31, 1.32)}, {"plan": 41, "uniform(5)": 31})

    assert doubted(plans, none(CHAIN).cost.step_seconds) == ["plan"]


def test_what_two_plans_share_is_in_no_doubt_between_them():
    doubtful = chain(error=0.25)

    difference, error = slower_by(doubtful, all_stages(doubtful), first(doubtful, 4))

    assert (difference, error) == pytest.approx((2.0, 2 * 0.25))  # two more recomputes
    assert slower_by(doubtful, Plan(items=((0,), *range(1, 6))), Plan(items=(0, (1,), *range(2, 6))))[1] == 0.0
    assert simulate(doubtful, all_stages(doubtful)).error_seconds == pytest.approx(6 * 0.25)
    assert simulate(doubtful, none(doubtful).plan).error_seconds == 0.0


def test_what_all_stages_of_a_way_are_off_by_together_is_no_smaller_for_being_of_many():
    errors = (0.1, 0.2, 0.3, 0.0, 0.0, 0.0)
    unlike = tuple(replace(stage, error_seconds=error) for stage, error in zip(CHAIN.stages, errors, strict=True))
    stages = replace(CHAIN, stages=unlike, doubts={"recomputed": 0.08})

    _, error = slower_by(stages, first(stages, 3), none(stages).plan)
    _, among = slower_by(stages, Plan(items=((0,), *range(1, 6))), Plan(items=(0, (1,), *range(2, 6))))

    assert error == pytest.approx(((3 * 0.08) ** 2 + 0.02**2 + 0.12**2 + 0.22**2) ** 0.5)
    assert among == pytest.approx((0.02**2 + 0.12**2) ** 0.5)  # both are recomputed: what they share cancels
