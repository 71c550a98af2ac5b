"""Trials sent elsewhere, by places that are no places: what comes back, how often, and what is ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from profiler.core.case import Choice, Trial
from profiler.engines import task_pool
from profiler.engines.task_pool import AHEAD, ATTEMPTS, run_remotely
from tests import make


class Place:
    """Takes trials; answers each at once with what `answer` returns or raises, or leaves it under way for None."""

    def __init__(self, answer: Callable[[Trial, int], object]) -> None:
        self.sent: Counter[Trial] = Counter()
        self.cancelled: list[Trial] = []
        self.under_way = self.most = 0
        self._answer = answer

    def send(self, trial: Trial) -> tuple[Future, Callable[[], object]]:
        self.sent[trial] += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        future: Future = Future()
        try:
            answer = self._answer(trial, self.sent[trial])
        except OSError as error:
            future.set_exception(error)
        else:
            if answer is not None:
                future.set_result(answer)
        return future, lambda: self.cancelled.append(trial)

    def run_remotely(self, trials: list[Trial], *, has_place: bool = True, patience: float = 0.0):
        return run_remotely(
            trials,
            send=self.send,
            is_lost=lambda error: isinstance(error, ConnectionError),
            has_place=lambda device: has_place,
            patience=patience,
        )


def trials(number: int, device: str = "cpu") -> list[Trial]:
    return [Trial(case=make.case(model=Choice(f"mlp:depth={at}"), device=device)) for at in range(1, number + 1)]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(task_pool, "LOOK_SECONDS", 0.01)


@pytest.mark.slow
def test_each_trial_comes_back_once_and_no_more_are_under_way_than_agreed():
    place = Place(lambda trial, attempt: "there")
    answered = []

    for returned in place.run_remotely(trials(3 * AHEAD)):
        place.under_way -= 1
        answered.append(returned)

    assert Counter(one.trial for one in answered) == dict.fromkeys(trials(3 * AHEAD), 1)
    assert {one.answer for one in answered} == {"there"}
    assert place.most == AHEAD


def test_a_device_does_not_wait_for_another_ones_trials():
    place = Place(lambda trial, attempt: "there" if trial.case.device == "cuda:t4" else None)

    returned = next(place.run_remotely([*trials(2 * AHEAD, "cuda:h100"), *trials(1, "cuda:t4")]))

    assert returned.trial.case.device == "cuda:t4"


def test_a_trial_whose_place_is_lost_is_sent_again():
    def answer(trial: Trial, attempt: int) -> str:
        if attempt < ATTEMPTS:
            raise ConnectionError("the node died")
        return "there"

    (returned,) = Place(answer).run_remotely(trials(1))

    assert (returned.answer, returned.error, returned.attempts) == ("there", None, ATTEMPTS)


def test_one_that_is_lost_every_time_comes_back_with_the_reason():
    def answer(trial: Trial, attempt: int) -> str:
        raise ConnectionError("the node died")

    place = Place(answer)
    (returned,) = place.run_remotely(trials(1))

    assert (str(returned.error), returned.attempts, place.sent.total()) == ("the node died", ATTEMPTS, ATTEMPTS)


def test_what_goes_wrong_otherwise_is_not_tried_again():
    def answer(trial: Trial, attempt: int) -> str:
        raise OSError("it is broken")

    place = Place(answer)
    (returned,) = place.run_remotely(trials(1))

    assert (str(returned.error), place.sent.total()) == ("it is broken", 1)


def test_closing_ends_all_that_is_under_way_and_nothing_else():
    place = Place(lambda trial, attempt: "there" if trial.case.model == "mlp:depth=1" else None)
    flown = place.run_remotely(trials(3))

    returned = next(flown)
    flown.close()

    assert returned.trial == trials(1)[0]
    assert place.cancelled == trials(3)[1:]


def test_where_a_device_has_no_place_any_more_its_trials_come_back_empty():
    place = Place(lambda trial, attempt: None)

    answered = list(place.run_remotely(trials(AHEAD + 2), has_place=False))

    assert [(one.trial, one.answer, one.error) for one in answered] == [(one, None, None) for one in trials(AHEAD + 2)]
    assert place.cancelled == trials(AHEAD)


def test_where_a_device_has_a_place_its_trials_may_take_as_long_as_they_like():
    place, looks = Place(lambda trial, attempt: None), []

    def has_place(device: str) -> bool:
        looks.append(device)
        if len(looks) == 5:
            raise KeyboardInterrupt
        return True

    flown = run_remotely(trials(1), send=place.send, is_lost=lambda error: False, has_place=has_place, patience=0.0)

    with pytest.raises(KeyboardInterrupt):
        list(flown)
    assert place.cancelled == trials(1)  # by the interrupt alone
