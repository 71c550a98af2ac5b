"""Memory that grows from step to step is told with its bytes, its operator and what keeps it.

The truth is a loop in plain PyTorch: the bytes of storages that are still held after each of its steps.
"""

import gc
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from profiler.core.case import Choice
from profiler.core.units import bytes_text
from tests.conftest import measured
from tests.left_behind import Storages
from tests.user_models import grows, keeps

FILE = grows.__file__
KEPT_BY = {
    "outputs": "`outputs` of the model",
    "class": "`seen` of the class Net",
    "graph": "the graph of what `outputs` of the model holds",
    "buffer": "the buffer `history`",
    "losses": "`LOSSES` in grows.py",
    "closure": "`kept` in the closure of loss",
    "cycle": "a Recorder",
}
MAKES = {  # the line whose operators make what is kept
    "outputs": "output = self.head(hidden)",
    "class": "hidden = self.layer(x).sin()",
    "graph": "self.layer(x).sin().sum()",
    "buffer": "torch.cat(",
    "losses": "output.square().mean()",
    "closure": "output.square().mean()",
    "cycle": "hidden = self.layer(x).sin()",
}
STEADY = ("nothing", "last", "recent", "queue", "late")


def told(how: str, strategy: str = "none", **fields: object) -> list[str]:
    """The notes on growth of a model of the user's file."""
    model = Choice(f"{FILE}:make:how={how}")
    record = measured(model, strategy, batch_size=8, optimizer=Choice("adamw"), passes=("memory",), **fields)
    assert record.outcome == "ok"
    return [note.text for note in record.notes if note.code == "GCP048"]


def truth(how: str) -> list[int]:
    """The bytes that each of four later steps of a plain loop leaves held; Python's collector does not run."""
    module, batch, loss = grows.make(how)
    optimizer = torch.optim.AdamW(module.parameters())
    alive = []
    gc.collect()
    gc.disable()
    try:
        with Storages() as storages:
            for _ in range(7):
                optimizer.zero_grad()
                loss(module(batch)).backward()
                optimizer.step()
                optimizer.zero_grad()
                alive.append(storages.alive())
    finally:
        gc.enable()
        grows.LOSSES.clear()
        grows.Net.seen.clear()
    return [after - before for before, after in pairwise(alive[2:])]


@pytest.mark.slow
@pytest.mark.parametrize("how", KEPT_BY)
def test_what_a_plain_loop_keeps_in_every_step_is_told_with_its_bytes_and_its_keeper(how):
    left = truth(how)

    (text,) = told(how)

    assert len(set(left)) == 1
    assert left[0] > 0
    assert f"{bytes_text(left[0])} " in text
    assert KEPT_BY[how] in text
    lines = {int(line) for line in re.findall(r"grows\.py:(\d+)", text)}
    made = {number for number, line in enumerate(Path(FILE).read_text().splitlines(), 1) if MAKES[how] in line}
    assert lines == made


@pytest.mark.parametrize("how", STEADY)
def test_a_step_that_leaves_nothing_or_fills_a_queue_with_an_end_is_not_told(how):
    assert told(how) == []


def test_a_cycle_is_told_from_what_is_never_freed():
    assert "until Python's collector runs" in told("cycle")[0]
    assert "until Python's collector runs" not in told("outputs")[0]


def test_a_recompute_that_keeps_once_more_grows_by_twice_the_bytes():
    model = Choice(f"{keeps.__file__}:averaging")
    once, twice = (
        [
            note.text
            for note in measured(model, strategy, batch_size=4, passes=("memory",)).notes
            if note.code == "GCP048"
        ]
        for strategy in ("none", "all")
    )

    assert ["grows by 12 B in" in text for text in once] == [True]  # a mean of fp32 for each of three blocks
    assert ["grows by 24 B in" in text for text in twice] == [True]


def test_further_steps_are_run_only_where_one_left_something():
    steps = {
        how: measured(Choice(f"{FILE}:make:how={how}"), "none", batch_size=8, passes=("memory",)).num_steps
        for how in ("nothing", "outputs")
    }

    assert steps == {"nothing": 2, "outputs": 2 + 8}
