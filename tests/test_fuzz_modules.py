"""gcprof says of modules made by chance what plain PyTorch says, and the fuzz finds what is planted."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from profiler.core.record import Record
from profiler.measuring.trial import measure
from tests import fuzz_modules, generated_modules
from tests.fuzz_modules import CHAINS, EACH, Compared, Finding
from tests.generated_modules import CHOICES, LOOPS, Plan

SAMPLE = (1, 2, 9, 35, 44, 45, 49, 55)  # of seed 0, by what plain PyTorch says of them
PLAIN = Plan(({"own": "reentrant"}, {"noise": "numpy"}), None, frozen_stem=True, loop=None)


@pytest.mark.parametrize("number", SAMPLE)
def test_what_is_said_of_a_module_is_what_plain_pytorch_says(number):
    compared = list(fuzz_modules.compare(0, number))

    assert compared
    assert [str(one) for one in compared if not one.is_right] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_sample_has_modules_of_every_truth():
    plans = {number: generated_modules.plan(f"0-{number}") for number in SAMPLE}
    told = {
        number: {fuzz_modules.Plain(plan).truth(strategy).verdict for strategy in ("none", "all", "own")}
        for number, plan in plans.items()
    }

    assert told == {
        1: {"not verifiable"},
        2: {"bit-equal", "differ"},
        9: {"bit-equal"},
        35: {"bit-equal", "differ"},
        44: {"bit-equal"},
        45: {"bit-equal", "missing"},
        49: {"bit-equal", "differ"},
        55: {"fails"},
    }


def test_no_two_numbers_near_each_other_are_nearly_the_same_where_nobody_can_seed_them():
    """By chance they would be once in a thousand runs, and a step that draws them within the noise of itself."""
    drawn = [generated_modules.far_from_the_last() for _ in range(300)]

    assert min(abs(drawn[at] - drawn[at + gap]) for gap in range(1, 20) for at in range(300 - gap)) > 0.02


@pytest.mark.filterwarnings("ignore")
def test_each_strategy_by_hand_finds_a_draw_that_its_recompute_repeats():
    """The second of two blocks, which is recomputed where it is under a checkpoint."""
    is_plain = {"first:n=1", "offload", "segments:k=2", "recursive", "from-start"}  # under which the last block is not

    for strategy in (*EACH, *CHAINS):
        told = fuzz_modules.Plain(PLAIN).truth(strategy).verdict
        assert told == ("bit-equal" if strategy in is_plain else "differ"), strategy
    assert fuzz_modules.Plain(PLAIN).truth("own") == Finding(
        "missing", 8
    )  # its layer; two are of no use in a block, and two in the module


@pytest.mark.parametrize("lie", ["bit-equal", "invalid"])
def test_a_lie_is_found_wherever_it_is_one(lie, monkeypatch):
    monkeypatch.setattr(fuzz_modules, "measure", lambda trial, build: lying(measure(trial, build=build), lie))

    wrong = {one.strategy for one in fuzz_modules.compare(0, 2) if not one.is_right}

    assert wrong == ({"all"} if lie == "bit-equal" else {"none", "offload"})


def test_where_nobody_can_seed_it_is_enough_not_to_be_sure():
    plan = Plan(({"noise": "system"}, {}), None, frozen_stem=False, loop=None)

    def is_right(said: str, truth: str) -> bool:
        return Compared(0, plan, "all", Finding(said), Finding(truth)).is_right

    assert is_right("not verifiable", "missing")
    assert is_right("fails", "not verifiable")
    assert not is_right("within noise", "not verifiable")
    assert not is_right("not verifiable", "bit-equal")


def test_a_name_makes_the_same_module_again_and_every_choice_comes_up():
    first, second = ([generated_modules.plan(f"0-{number}") for number in range(300)] for _ in range(2))

    assert first == second
    drawn = Counter((key, word) for plan in first for block in plan.blocks for key, word in block.items())
    assert set(drawn) == {(key, word) for key, chances in CHOICES.items() for word in chances}
    assert {plan.shared for plan in first} == {None, "weight", "block"}
    assert {plan.loop for plan in first} == {None, *LOOPS}


def lying(record: Record, lie: str) -> Record:
    """The record of a profiler that always says the same."""
    if lie == "invalid":
        return msgspec.structs.replace(record, outcome="invalid")
    equality = msgspec.structs.replace(record.equality, gradients_equal=True, loss_equal=True, missing=())
    return msgspec.structs.replace(record, outcome="ok", equality=equality)
