"""A strategy switched off leaves the step of `none`: bytes, gradients, operators; and it can be switched on again."""

import pytest

from profiler.core.errors import Unsupported
from profiler.training import STRATEGIES
from tests.catalogue_choices import EVERY
from tests.plans import written
from tests.switched_steps import CHOICES, MODELS, assert_same, built, step

WITHOUT = {"compile-budget"}  # compiled code stays what it is
ELSEWHERE = {"hf"}  # on models of Hugging Face, below


def test_every_strategy_of_the_catalogue_has_a_switch_or_is_known_to_have_none():
    assert {name for name, choices in EVERY.items() if not choices} == {*WITHOUT, *ELSEWHERE, "_planted"}
    assert EVERY.keys() == STRATEGIES.keys()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategy", CHOICES)
def test_a_strategy_that_is_switched_off_leaves_the_step_of_none(model, strategy, tmp_path):
    true = step(built(model, "none"))
    try:
        assembled = built(model, str(written(strategy, model, tmp_path)))
    except Unsupported as reason:
        pytest.skip(str(reason))
    on = step(assembled)

    assembled.switch(False)
    assert_same(step(assembled), true)

    assembled.switch(True)
    again = step(assembled)
    assert again[1:] == on[1:]
    if assembled.applied.recomputes:
        assert sum(again[1].values()) > sum(true[1].values())  # it does recompute, so the switch did something


@pytest.mark.filterwarnings("error:.*checkpointing.*is deprecated:FutureWarning")
def test_the_switch_of_hugging_face_is_used():
    model = "hf:gpt2:n_embd=32,n_head=2,n_layer=3,vocab_size=50,sequence=8"
    true = step(built(model, "none"))
    assembled = built(model, "hf")
    on = step(assembled)

    assembled.switch(False)
    assert_same(step(assembled), true)
    assembled.switch(True)

    assert step(assembled)[1] == on[1] != true[1]
