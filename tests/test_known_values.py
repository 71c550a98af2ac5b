"""A step that asks whether its mask masks anything is followed and rehearsed as its factory's own mask answers."""

from functools import cache
from pathlib import Path

import pytest
import torch

from profiler.core.case import Choice, Trial
from profiler.core.record import Record
from profiler.measuring.trial import measure
from profiler.predicting.fake_tensors import fake_tensors
from profiler.predicting.prediction import predict
from profiler.runs import store
from profiler.training.known_values import value_of
from tests import make
from tests.program import gcprof
from tests.user_models import from_data, padded

FILE = f"{padded.__file__}:make"
TOLD = {"ones": "whole", "tokens": "whole", "written": "padded", "lengths": "padded"}
FEW = 64  # bytes: the numbers that a question makes
BATCH, LENGTH, DEPTH = 4, 64, 3


def trial(model: str, device: str, **options: object) -> Trial:
    case = make.case(model=Choice.of(model, options), batch_size=None, device=device, verify="off")
    return Trial(case=case, passes=("memory",))


@cache
def measured(**options: object) -> int:
    return measure(trial(FILE, "cpu", **options)).readings.peak_bytes


def predicted(device: str, **options: object) -> Record:
    return predict(trial(FILE, device, **options))


@pytest.mark.parametrize(
    ("mask", "question"), [*((mask, "all") for mask in TOLD), ("ones", "sum"), ("written", "equal"), ("written", "any")]
)
def test_on_a_cpu_the_step_is_predicted_that_is_measured(mask, question):
    record = predicted("fake:cpu", mask=mask, question=question)

    assert abs(record.readings.peak_bytes - measured(mask=mask)) <= FEW
    assert abs(measured(mask=mask) - measured(mask=mask, question=TOLD[mask])) <= FEW
    assert "GCP017" not in {note.code for note in record.notes}


def test_a_padded_mask_is_saved_by_every_layer_and_a_whole_one_by_none():
    as_numbers = DEPTH * BATCH * LENGTH * LENGTH * 4  # attention takes it in fp32

    assert measured(mask="written") - measured(mask="ones") == as_numbers


@pytest.mark.slow
def test_a_rehearsed_step_and_a_predicted_one_take_what_they_take_where_the_mask_is_told(hollow, tmp_path):
    """The records of `predict --rehearse`, with the mask asked and told."""
    words = ("--batch-size", str(BATCH), "--rehearse", "--device", "h100", "--keep", "--strategies", "none")
    peaks = set()
    for options in ({}, {"question": TOLD["written"]}):
        folder = tmp_path / str(len(options))
        folder.mkdir()
        done = gcprof("predict", str(Choice.of(FILE, {"mask": "written", **options})), *words, cwd=folder)
        assert done.returncode == 0, done.stderr
        (run,) = (folder / "results").glob("*/manifest.json")
        records = store.load(run.parent).records
        assert not {note.code for record in records for note in record.notes} & {"GCP041", "GCP017"}
        peaks |= {record.readings.peak_bytes for record in records}

    assert len(peaks) == 1


def test_values_follow_what_is_made_of_them_and_are_forgotten_where_others_overwrite_them():
    with fake_tensors():
        mask = torch.ones(3, 4, dtype=torch.long)
        mask[1:, 2:] = 0
        view, copy = mask[1], mask.clone()
        rows = mask.bool().all(1)
        mask.masked_fill_(torch.empty(3, 4) > 0, 1)
        values = [value_of(tensor) for tensor in (mask, view, copy, rows)]

    assert values[:2] == [None, None]
    assert values[2].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]]
    assert values[3].tolist() == [True, False, False]


@pytest.mark.parametrize("strategy", ["none", "all"])
def test_what_a_step_draws_is_not_known_so_that_a_recompute_is_not_told_other_numbers(strategy):
    skipping = Choice(f"{Path(__file__).parent}/user_models/draws.py:once_more:kind=skipping")

    record = predict(Trial(case=make.case(strategy, model=skipping, batch_size=8, device="fake:h100")))

    assert record.outcome == "ok"
    assert "GCP017" in {note.code for note in record.notes}
    assert record.readings.saved_bytes >= 6 * 8 * 8 * 4 or strategy == "all"  # no block is skipped


def sizes(record):
    return record.readings.peak_bytes, record.readings.saved_bytes, record.readings.static_bytes


@pytest.mark.parametrize("source", [*from_data.BATCHES, "lazy", "assigned", "saved"])
def test_a_batch_from_data_takes_what_a_drawn_one_does_and_on_a_cpu_what_is_measured(source, tmp_path):
    drawn, other = (f"{from_data.__file__}:{name}" for name in ("make", source))
    name, options = (drawn, {"source": source}) if source in from_data.BATCHES else (other, {})
    if source == "saved":
        options["path"] = tmp_path / "d.pt"
        torch.save(tuple(from_data.rows().tensors), options["path"])

    on_gpu, on_cpu = (predict(trial(name, device, **options)) for device in ("fake:h100", "fake:cpu"))

    assert sizes(on_gpu) == sizes(predict(trial(drawn, "fake:h100")))
    assert abs(on_cpu.readings.peak_bytes - measure(trial(name, "cpu", **options)).readings.peak_bytes) <= FEW


EXPERTS = Path(__file__).parent / "user_models" / "experts.py"


@pytest.mark.parametrize(("sent", "strategy"), [("balanced", "all"), ("worst", "none")])
@pytest.mark.parametrize("way", ["best", "two", "sorted"])
def test_a_predicted_mixture_holds_what_a_measured_one_holds_whose_tokens_go_there(way, sent, strategy):
    model = Choice(f"{EXPERTS}:make:batch_size=96,width=64,way={way},sent={sent}")
    stated = {} if sent == "balanced" else {"routing": sent}

    predicted = predict(Trial(case=make.case(strategy, model=model, batch_size=None, device="fake:cpu", **stated)))
    real = measure(Trial(case=make.case(strategy, model=model, batch_size=None), passes=("memory",)))

    assert predicted.readings.peak_bytes == real.readings.peak_bytes
    assert predicted.readings.saved_bytes == real.readings.saved_bytes
    assert "GCP062" in {note.code for note in predicted.notes}
