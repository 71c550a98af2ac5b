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
from profiler.training.workload import uncollected
from tests.conftest import measured
from tests.left_behind import Storages
from tests.user_models import grows, keeps

FILE = grows.__file__
KEPT_BY = {  # and the line whose operators make what is kept
    "outputs": ("`outputs` of the model", "output = self.head(hidden)"),
    "graph": ("the graph of what `outputs` of the model holds", "self.layer(x).sin().sum()"),
    "buffer": ("the buffer `history`", "torch.cat("),
    "losses": ("`LOSSES` in grows.py", "output.square().mean()"),
    "closure": ("`kept` in the closure of loss", "output.square().mean()"),
    "cycle": ("a Recorder", "hidden = self.layer(x).sin()"),
}


def told(model: str, strategy: str = "none", **fields: object) -> tuple[list[str], int]:
    """The notes on growth of a model, and the number of steps that were run."""
    with uncollected():
        record = measured(Choice(model), strategy, passes=("memory",), **fields)
    assert record.outcome == "ok"
    return [note.text for note in record.notes if note.code == "GCP048"], record.num_steps


def truth(how: str) -> list[int]:
    """The bytes that each of four later steps of a plain loop leaves held; Python's collector does not run."""
    module, batch, loss = grows.make(how)
    optimizer = torch.optim.AdamW(module.parameters())
    alive = []
    gc.collect()
    with uncollected(), Storages() as storages:
        for _ in range(7):
            optimizer.zero_grad()
            loss(module(batch)).backward()
            optimizer.step()
            optimizer.zero_grad()
            alive.append(storages.alive())
    grows.LOSSES.clear()
    return [after - before for before, after in pairwise(alive[2:])]


@pytest.mark.slow
@pytest.mark.parametrize("how", KEPT_BY)
def test_what_a_plain_loop_keeps_in_every_step_is_told_with_its_bytes_and_its_keeper(how):
    left = truth(how)
    keeper, line = KEPT_BY[how]

    (text,), num_steps = told(f"{FILE}:make:how={how}", batch_size=8, optimizer=Choice("adamw"))

    assert how != "outputs" or num_steps == 2 + 8
    assert len(set(left)) == 1
    assert left[0] > 0
    assert f"{bytes_text(left[0])} " in text
    assert keeper in text
    made = {number for number, here in enumerate(Path(FILE).read_text().splitlines(), 1) if line in here}
    assert {int(number) for number in re.findall(r"grows\.py:(\d+)", text)} == made
    assert ("until Python's collector runs" in text) == (how == "cycle")


@pytest.mark.parametrize("how", ["nothing", "last", "queue", "late"])
def test_a_step_that_leaves_nothing_or_fills_a_queue_with_an_end_is_not_told(how):
    found, num_steps = told(f"{FILE}:make:how={how}", batch_size=8, optimizer=Choice("adamw"))

    assert found == []
    assert how != "nothing" or num_steps == 2


def test_a_recompute_that_keeps_once_more_grows_by_twice_the_bytes():
    ((once,), _), ((twice,), _) = (
        told(f"{keeps.__file__}:averaging", strategy, batch_size=4) for strategy in ("none", "all")
    )

    assert "grows by 12 B in" in once  # a mean of fp32 for each of three blocks
    assert "grows by 24 B in" in twice
