"""What a rehearsed device does not have is told as such, and not as the user's mistake."""

from pathlib import Path

import pytest

from profiler.core.record import Record
from profiler.runs import store
from tests.program import gcprof

pytestmark = pytest.mark.slow

USER_MODELS = Path(__file__).parent / "user_models"
FILE = USER_MODELS / "hollow_limits.py"
OWN = ("qr", "isin", "misfit", "elsewhere")
OTHERS = {"lstm": f"{USER_MODELS / 'lstm.py'}:char_rnn", "mlp": "mlp", "convolutions": "mnist-cnn:channels=4"}
MODELS = {name: f"{FILE}:{name}" for name in OWN} | OTHERS


@pytest.fixture(scope="module")
def rehearsed(hollow, tmp_path_factory) -> dict[str, Record]:
    """The record of each model."""
    here = tmp_path_factory.mktemp("limits")
    words = ("--strategies", "none", "--cudnn-workspace", "1MiB")
    gcprof("rehearse", ",".join(MODELS.values()), *words, "-o", "run", cwd=here)
    records = {str(record.case.model): record for record in store.load(here / "run").records}
    return {name: records[word] for name, word in MODELS.items()}


@pytest.mark.parametrize(
    ("model", "said"),
    [("lstm", "recurrent networks ran by PyTorch's own kernels"), ("qr", "decompositions of matrices ran on the CPU")],
)
def test_what_the_devices_libraries_lack_is_done_otherwise_and_said(rehearsed, model, said):
    record = rehearsed[model]

    assert record.outcome == "ok"
    assert record.readings.peak_bytes > record.readings.saved_bytes > 0
    assert [said in note.text for note in record.notes if note.code == "GCP018"] == [True]


def test_an_operator_that_fails_by_the_values_that_it_reads_inside_itself_is_named(rehearsed):
    at = next(number for number, line in enumerate(FILE.read_text().splitlines(), start=1) if "isin(numbers" in line)
    record = rehearsed["isin"]

    assert record.outcome == "failed"
    text = f"the step reads values, which are zeros or leftovers here: isin (hollow_limits.py:{at})"
    assert [(note.code, note.text) for note in record.notes] == [("GCP041", text)]


@pytest.mark.parametrize(
    ("model", "words"),
    [("misfit", "mat1 and mat2 shapes cannot be multiplied"), ("elsewhere", "to be on the same device")],
)
def test_an_operator_that_fails_by_shapes_or_devices_has_read_no_values(rehearsed, model, words):
    assert rehearsed[model].outcome == "failed"
    assert words in rehearsed[model].detail
    assert rehearsed[model].notes == ()
