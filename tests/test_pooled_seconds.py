"""Timed steps become the costs of stages, and measured ways are chosen from: with samples that are planted."""

from random import Random

import pytest
from msgspec.structs import replace

from profiler.analysis.rows import rows
from profiler.planning.chain import Chain, Plan, SaveOption, Stage, StageModule
from profiler.planning.simulator import Way, all_stages, first, none, simulate, slower_by, uniform
from profiler.predicting.stage_operators import EMPTY, timed_stage
from profiler.predicting.stage_seconds import EVERY, MOST_DOUBT, PLAIN, WHOLE, Seconds, StageSpan, StepSample, pooled
from profiler.views.tables.plans import ComparedPlan
from profiler.workflows.planner import choose, doubted, sentence
from tests import make
from tests.make import MIB

OUTSIDE = 0.5
AROUND = StageSpan(blocks=(), name="", first=0, last=0, outputs=frozenset(), stop=0)


def work(kind: str) -> StageSpan:
    return replace(AROUND, blocks=(0,), kind=kind)


def step(*stages: tuple[float, float, float], outside: float = OUTSIDE) -> StepSample:
    """A step of stages with these seconds of forward, recompute and backward, and of one of no blocks behind them."""
    forward, recompute, backward = zip(*stages, (0.0, 0.0, 0.0), strict=True)
    total = outside + sum(forward) + sum(recompute) + sum(backward)
    return StepSample(total=total, forward=forward, recompute=recompute, backward=backward)


def plain(*forwards: float, backward: float = 2.0) -> StepSample:
    """A step without checkpoints, whose backwards are in its total alone."""
    kept = step(*((forward, 0.0, 0.0) for forward in forwards))
    return replace(kept, total=kept.total + backward * len(forwards))


def test_a_step_is_the_sum_of_its_stages_and_of_what_is_around_them():
    samples = {PLAIN: [plain(1, 3, backward=4)] * 3, EVERY: [step((1, 0.9, 2), (3, 2.7, 6))] * 3}

    first, second, around = pooled(samples, [work("a"), work("b"), AROUND])

    assert (first.forward, first.backward) == pytest.approx((1, 2))
    assert (second.forward, second.backward) == pytest.approx((3, 6))
    assert first.early_stop == pytest.approx(0.9)
    assert second.early_stop == pytest.approx(2.7)
    assert around.forward == pytest.approx(OUTSIDE)


def test_what_a_selective_context_takes_is_in_the_costs_of_its_option():
    works = [work("a"), work("a"), AROUND]
    kept = [step((1.25, 0.25, 2), (1.25, 0.25, 2), outside=OUTSIDE + 0.5)] * 6
    samples = {PLAIN: [plain(1.0, 1.0)] * 6, EVERY: [step((1, 1, 2), (1, 1, 2))] * 6, "matmul": kept}

    first, _, _ = pooled(samples, works)

    forward, backward = first.options["matmul"]
    assert forward + backward - first.forward - first.backward == pytest.approx(0.25 + 0.25 + 0.25)


def test_what_other_processes_took_of_the_steps_is_in_doubt():
    works = [work("a"), AROUND]

    def taken(held: float | None):
        samples = {PLAIN: [plain(1.0)] * 6, EVERY: [step((1, 1, 2))] * 6}
        told = {
            way: [replace(sample, held=None if held is None else held * sample.total) for sample in of]
            for way, of in samples.items()
        }
        return pooled(told, works)[0]

    assert taken(None).error == taken(1.0).error == taken(0.95).error == 0.0
    assert taken(0.8).error == pytest.approx(0.2 * (3.5 + 4.5) / 2)  # of a recompute of a second
    assert taken(0.5).error == pytest.approx(0.9)  # never all: it takes some time


@pytest.mark.slow
def test_intervals_of_plans_hold_the_truth_where_steps_are_noisy_and_where_stages_are():
    """Sixteen unlike stages of a second each are recomputed, or saved by an option that takes as long."""
    draw, works = Random(0), [*(work(str(number)) for number in range(16)), AROUND]
    again, kept = (1.0, 1.0, 2.0), (1.0, 0.0, 2.0)
    for of_steps, of_stages in ((5.0, 0.02), (0.05, 0.2)):
        held, apart = 0, 0
        for _ in range(200):
            ways = {PLAIN: kept, EVERY: again, "mm": again}
            samples = {way: [noisy(stage, draw, of_steps, of_stages) for _ in range(9)] for way, stage in ways.items()}
            made = chain_of(pooled(samples, works))
            every = Plan(items=tuple((place,) for place in range(16)))
            saved = Plan(items=tuple(range(16)), options=tuple((place, "mm") for place in range(16)))
            cost = simulate(made, every)
            added = cost.step_seconds - simulate(made, Plan(items=tuple(range(16)))).step_seconds
            held += abs(added - 16) <= cost.error_seconds
            difference, error = slower_by(made, every, saved)
            apart += abs(difference) > error

        assert held >= 0.93 * 200
        assert apart <= 0.07 * 200


def chain_of(found: list[Seconds]) -> Chain:
    module, saves = (StageModule(name="", parameters=()),), {"mm": EMPTY}
    stages = [timed_stage(EMPTY, seconds, blocks=module, saves=saves) for seconds in found[:-1]]
    doubts = {"recomputed": found[0].doubts[EVERY], "mm": found[0].doubts["mm"]}
    return Chain(input_bytes=0, doubts=doubts, stages=tuple(stages))


def noisy(stage: tuple[float, float, float], draw: Random, of_steps: float, of_stages: float) -> StepSample:
    """A step whose stages differ by themselves, and which differs as a whole by what none of them shows."""
    stages = [tuple(second * draw.gauss(1, of_stages) for second in stage) for _ in range(16)]
    return step(*stages, outside=20 + draw.gauss(0, of_steps))


def test_equal_stages_never_differ_and_what_timing_each_takes_is_not_in_the_step():
    """A step takes 5.5 s as it is, and 6 s with each stage kept and timed, as it is where each is checkpointed."""
    samples = {
        WHOLE: [replace(plain(1.0, 1.0), total=5.5, forward=(0.0, 0.0, 0.0))] * 6,
        PLAIN: [replace(plain(0.8, 1.2), total=6.0)] * 6,
        EVERY: [step((1.1, 0.8, 2), (0.9, 1.2, 2))] * 6,
    }

    first, second, around = pooled(samples, [work("a"), work("a"), AROUND])
    alone, _ = pooled({EVERY: [step((1, 0.75, 2))] * 3}, [work("a"), AROUND])  # nothing else fits

    assert (first.forward, first.backward, first.early_stop) == (second.forward, second.backward, second.early_stop)
    assert sum(stage.forward + stage.backward for stage in (first, second, around)) == pytest.approx(5.5)
    assert first.early_stop == pytest.approx((8.5 - 5.5) / 2)
    assert (alone.forward, alone.early_stop, alone.backward) == pytest.approx((1, 0.75, 2))


def test_after_one_round_what_checkpoints_add_is_known_to_be_doubtful():
    works = [work("a"), work("b"), AROUND]
    taken = {PLAIN: [plain(1, 3)], EVERY: [step((1, 0.9, 2), (3, 2.7, 6))]}

    once, often = (pooled({way: samples * rounds for way, samples in taken.items()}, works) for rounds in (1, 3))

    assert [seconds.forward for seconds in once] == pytest.approx([seconds.forward for seconds in often])
    assert once[0].error == pytest.approx(MOST_DOUBT * once[0].early_stop)
    assert often[0].error < once[0].error


# --- which measured way is taken, what is said of it, and that it agrees with the table


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


PEAKS = {"plan": 41, "uniform(5)": 31}


def test_a_plan_that_was_measured_slower_and_larger_than_a_rival_is_not_taken():
    """The costs said -12 % of the plan with kept matmuls; +52 % was measured, and +35 % of a split in less memory."""
    plans = compared({"plan": (1.50, 1.52, 1.53, 1.55), "uniform(5)": (1.33, 1.34, 1.36, 1.37)}, PEAKS)

    chosen = choose(plans, CHAIN, BUDGET)

    assert chosen[0].way.label == "uniform(5)"
    assert sentence(chosen).startswith("uniform(5) is chosen: no other plan that fits is faster")


def test_what_neither_times_nor_costs_tell_apart_is_taken_by_its_simplicity():
    noisy = chain(error=0.5)

    chosen = choose(compared({"plan": (0.4, 1.2, 2.0, 3.1), "uniform(5)": (0.35, 1.1, 2.1, 2.9)}, PEAKS), noisy, BUDGET)

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
