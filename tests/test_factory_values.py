"""A factory computes on its own data whatever it likes, also where a model is traced or rehearsed."""

from pathlib import Path

import pytest
import torch

from profiler.core.case import Choice, Trial
from profiler.measuring.trial import measure
from profiler.predicting.prediction import predict
from profiler.runs import store
from tests import make
from tests.program import gcprof
from tests.user_models import from_data

FACTORIES = ("lazy", "assigned", "saved")
FEW = 64  # bytes: as in test_known_values


def trial(name: str, device: str, **options: object) -> Trial:
    model = Choice.of(f"{from_data.__file__}:{name}", options)
    return Trial(case=make.case(model=model, batch_size=None, device=device, verify="off"), passes=("memory",))


@pytest.fixture
def factory(tmp_path, request):
    """The factory's name and options; the file that it reads is there."""
    name = request.param
    if name in from_data.BATCHES:
        return "make", {"source": name}
    stored = {"x": torch.ones(from_data.ROWS, from_data.WIDTH), "y": torch.arange(from_data.ROWS) % from_data.KINDS}
    torch.save(stored, tmp_path / "d.pt")
    return name, {"path": str(tmp_path / "d.pt")} if name == "saved" else {}


def sizes(record):
    return record.readings.peak_bytes, record.readings.saved_bytes, record.readings.static_bytes


@pytest.mark.parametrize("factory", [*from_data.BATCHES, *FACTORIES], indirect=True)
def test_a_batch_from_data_takes_what_a_drawn_one_does(factory):
    name, options = factory

    record = predict(trial(name, "fake:h100", **options))

    assert sizes(record) == sizes(predict(trial("make", "fake:h100")))


@pytest.mark.parametrize("factory", ["workers", "arrays", "lazy"], indirect=True)
def test_a_batch_from_data_takes_on_a_cpu_what_is_measured(factory):
    name, options = factory

    record = predict(trial(name, "fake:cpu", **options))

    measured = measure(trial(name, "cpu", **options)).readings.peak_bytes
    assert abs(record.readings.peak_bytes - measured) <= FEW


@pytest.mark.slow
def test_a_factory_that_computes_on_its_data_is_rehearsed_on_the_device(tmp_path):
    words = ("rehearse", f"{from_data.__file__}:make:source=workers", "--device", "h100", "--memory", "200GiB")
    done = gcprof(*words, "--strategies", "none", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "results").glob("*/manifest.json")
    (record,) = store.load(run.parent).records
    assert [note.code for note in record.notes] == ["GCP039", "GCP016"]
    assert sizes(record) == sizes(predict(trial("make", "fake:h100", source="workers")))


@pytest.mark.parametrize(
    ("name", "noun"), [("whole_loader", "next\\(iter\\(loader\\)\\)"), ("other_keys", "it takes input")]
)
def test_a_batch_that_the_module_does_not_take_is_told_by_the_factory(name, noun):
    with pytest.raises(TypeError, match=noun):
        predict(trial(name, "fake:cpu"))


# --- steps whose sizes depend on where tokens are routed: predicted for a stated routing, measured with that routing


FILE = Path(__file__).parent / "user_models" / "experts.py"


@pytest.mark.parametrize(("sent", "strategy"), [("balanced", "all"), ("worst", "none")])
@pytest.mark.parametrize("way", ["best", "two", "sorted"])
def test_a_predicted_mixture_holds_what_a_measured_one_holds_whose_tokens_go_there(way, sent, strategy):
    model = Choice(f"{FILE}:make:batch_size=96,width=64,way={way},sent={sent}")
    stated = {} if sent == "balanced" else {"routing": sent}

    predicted = predict(Trial(case=make.case(strategy, model=model, batch_size=None, device="fake:cpu", **stated)))
    measured = measure(Trial(case=make.case(strategy, model=model, batch_size=None), passes=("memory",)))

    assert predicted.readings.peak_bytes == measured.readings.peak_bytes
    assert predicted.readings.saved_bytes == measured.readings.saved_bytes
    assert "GCP062" in {note.code for note in predicted.notes}
