"""Numbers that a model draws from elsewhere than torch: seeded for every comparison, or the comparison is refused."""

import random
from functools import partial

import numpy as np
import pytest

from profiler.analysis.rows import verdict
from profiler.training import kept_state
from tests.conftest import measured
from tests.plain_steps import apart, chain, two_steps
from tests.user_models import draws

FILE = draws.__file__
SEEDED = {
    "random": "random",
    "numpy": "numpy.random",
    "file": "draws.OF_THE_FILE",
    "own-python": "0.python",
    "own-numpy": "0.numpy",
    "own-torch": "0.torch",
}


def records(source):
    return [measured(f"{FILE}:make:source={source}", strategy, passes=("equality",)) for strategy in ("none", "all")]


@pytest.mark.slow
@pytest.mark.parametrize("source", sorted(SEEDED))
def test_what_can_be_seeded_is_and_a_recompute_that_draws_anew_is_invalid_and_named(source):
    none, every = records(source)
    plain, again, recomputed = (two_steps(partial(draws.make, source), way) for way in (None, None, chain()))

    assert apart(plain, recomputed) > apart(plain, again) == 0.0
    assert none.equality.noise_floor == 0.0
    assert verdict(none) == "bit-equal"
    assert every.outcome == "invalid"
    assert SEEDED[source] in every.equality.random_sources
    assert f"the recompute draws different numbers from {SEEDED[source]}" in every.detail
    assert any(note.code == "GCP005" and SEEDED[source] in note.text for note in every.notes)


def test_what_nobody_can_seed_is_never_a_saving():
    none, every = records("system")

    assert none.outcome == "ok"
    assert verdict(none) == verdict(every) == "not verifiable"
    assert any(note.code == "GCP044" and "os.urandom" in note.text for note in none.notes)
    assert every.outcome == "invalid"
    assert "nothing can be verified" in every.detail


def test_the_users_own_global_states_are_put_back():
    random.seed(5)
    np.random.seed(5)
    expected = random.Random(5).random(), np.random.RandomState(5).rand()

    with kept_state.kept_generators():
        kept_state.seed(0)
        random.random()

    assert (random.random(), np.random.rand()) == expected
