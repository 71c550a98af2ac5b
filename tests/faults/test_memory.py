"""Memory that is not there: at one setting, at all of them, on the device or on the host."""

from __future__ import annotations

import pytest
import torch

from profiler.cli import answer
from profiler.core.case import Choice, Trial
from profiler.core.record import Shortage
from profiler.core.units import GIB
from profiler.engines import error_record
from profiler.engines.worker import attempt
from profiler.measuring.trial import measure
from profiler.runs import store
from profiler.views.tables import columns
from tests import examples, make
from tests.faults.trials import outcomes, run
from tests.program import next_words

FULL = Shortage(of="device", asked_bytes=20 * GIB, free_bytes=3 * GIB // 2)


LARGE = """
import torch
from torch import nn

def make(batch_size=2):
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 5_000_000_000_000))
    return module, torch.ones(batch_size, 8), lambda output: output.sum()
"""


def smallest(*found: Shortage | None) -> str:
    """The last line below a table of which every setting ran out of memory, each with such a request."""
    names = ("none", "sqrt", "all")
    records = [make.failed(name, "out_of_memory", "why", shortage=one) for name, one in zip(names, found, strict=False)]
    return columns.reasons(examples.table(records))[-1]


@pytest.mark.slow
def test_fault_11_out_of_memory_at_one_setting_is_a_row_with_its_bytes_and_the_others_run(here, shared, capsys):
    code = run("oom,at=recompute", "all,segments:k=1")

    assert code == 0
    assert outcomes(here / "run") == {"none": "ok", "all": "out_of_memory", "segments:k=1": "ok"}
    (full,) = (one for one in store.load(here / "run").records if one.outcome == "out_of_memory")
    assert full.shortage == FULL
    assert full.environment.device_bytes > 0
    assert "all: out of memory: CUDA out of memory. Tried to allocate 20.00 GiB" in capsys.readouterr().out
    assert (here / "run" / "derived" / "frontier.png").exists()


def test_fault_12_where_nothing_fits_the_smallest_request_is_told_and_what_to_try(here, shared, capsys):
    code = run("oom", "none,all")

    out, err = capsys.readouterr()
    assert code == 1
    assert outcomes(here / "run") == {"none": "out_of_memory", "all": "out_of_memory"}
    assert "nothing fits into memory: the smallest request that failed was 20.0 GiB with 1.50 GiB free" in out
    assert "try a smaller --batch-size" in out
    assert not (here / "run" / "derived" / "frontier.png").exists()
    assert answer(next_words(err)) == 0


def test_fault_12_where_the_model_alone_does_not_fit_no_strategy_is_advised(tmp_path):
    (tmp_path / "large.py").write_text(LARGE)
    model = Choice(f"{tmp_path}/large.py:make")

    records = [
        attempt(Trial(case=make.case(name, model=model, batch_size=2)), on_pass=lambda stage: None, by=measure)
        for name in ("none", "all")
    ]

    assert all(record.detail.startswith("while the model was built: ") for record in records)
    advice = columns.reasons(examples.table(records))[-1]
    assert "the model with its batch does not fit even before a step" in advice
    assert not any(word in advice for word in ("--strategies", "--batch-size", "max-batch"))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), "host"),
        (torch.OutOfMemoryError("CUDA out of memory."), "device"),
        (RuntimeError("CUDA error: out of memory"), "device"),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "device"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
        (ValueError("can't allocate memory"), None),
    ],
)
def test_fault_13_every_way_of_saying_it_is_known_and_no_other(error, expected):
    found = error_record.shortage(error)

    assert (found and found.of) == expected
    assert found is None or found.asked_bytes is None
