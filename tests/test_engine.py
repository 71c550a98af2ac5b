"""Whatever becomes of a child is the outcome of its own trial; real processes throughout."""

import pytest

from profiler.core.case import Choice, Trial
from tests import make

MINE = """
import torch

def make():
    return torch.nn.Linear(2, 2), (torch.ones(3, 2), torch.ones(3, 2)), torch.nn.MSELoss()
"""


def trial(model: str = "mlp", batch_size: int | None = None, **fields) -> Trial:
    return Trial(case=make.case(model=Choice(model), batch_size=batch_size, samples=1, warmup=0), **fields)


def test_a_record_from_a_child_is_whole(engine):
    (record,) = engine.run([trial(batch_size=4)])

    assert record.outcome == "ok"
    assert record.readings.peak_bytes > record.readings.start_bytes > 0
    assert record.environment.torch is not None
    assert set(record.stage_seconds) == {"start", "build", "equality", "flops", "memory", "time"}
    sample = record.readings.steps_per_sample
    in_turns = 2 * (1 + sample)  # settle, a sample; as often without the strategy
    assert record.num_steps == 1 + 2 + 2 + in_turns  # counting; settle, read; the same two steps again; time


def test_relative_paths_begin_where_the_client_is_now(engine, here):
    (here / "mine.py").write_text(MINE)

    (found,) = engine.run([trial("mine.py:make")])
    (here / "mine.py").unlink()
    (gone,) = engine.run([trial("mine.py:make")])

    assert found.outcome == "ok", found.detail
    assert gone.outcome != "ok"


@pytest.mark.parametrize(("model", "module", "is_there"), [
    ("dense-chain:widths=4+4", "profiler.training.models.built_in", True),
    ("tests.user_models.architectures:any_order", "tests.user_models.architectures", False),
])  # fmt: skip
def test_the_server_imports_a_model_of_the_table_once_for_all_children_and_never_a_users(
    engine, model, module, is_there
):
    list(engine.run([trial(model)]))

    told = engine.ask("tests.faults.trials:imported", module, failing="no answer")

    assert told == {"is_there": is_there}
