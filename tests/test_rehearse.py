"""`gcprof rehearse`: PyTorch's own CUDA code on a GPU that is not there, in processes of its own."""

from pathlib import Path

import pytest
import torch

from profiler.core.record import evidence
from profiler.core.units import MIB, bytes_text
from profiler.runs import store
from tests.pasted import named
from tests.program import gcprof

pytestmark = pytest.mark.slow

WIDE = "mlp:width=4096,features=4096"
USER_MODELS = Path(__file__).parent / "user_models"
ON_HOST = f"{USER_MODELS / 'saved_hooks.py'}:make:hooks=save_on_cpu"  # where what it saves waits
READS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        rates = [rate.item() for rate in torch.linspace(0.5, 1.0, 3)]
        self.layers = nn.ModuleList(nn.Linear(64, int(64 * rate), bias=False) for rate in rates)

    def forward(self, x):
        mean = sum(layer(x).mean() for layer in self.layers)
        return mean + x[(x.sum(1) > 0).nonzero().flatten()].mean()

def make(batch_size: int = 8):
    return Net(), torch.zeros(batch_size, 64), lambda output: output

def tried(batch_size: int = 8):
    module, batch, loss = make(batch_size)
    assert module(batch).item() is not None
    return module, batch, loss
"""


def records(folder):
    return {(record.case.device, str(record.case.strategy)): record for record in store.load(folder).records}


@pytest.mark.parametrize("model", ["transformer:layers=4,width=64", ON_HOST])
def test_the_rehearsal_and_the_prediction_stand_beside_each_other_to_the_byte(model, hollow, tmp_path):
    words = ("predict", model, "--strategies", "all", "--batch-size", "4", "--device", "h100")
    done = gcprof(*words, "--rehearse", "-o", "run", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    stored = records(tmp_path / "run")
    for strategy in ("none", "all"):
        rehearsed, predicted = stored["rehearse:h100", strategy], stored["fake:h100", strategy]
        assert evidence(rehearsed.case, rehearsed.environment) == "rehearsed"
        assert evidence(predicted.case, predicted.environment) == "predicted"
        assert rehearsed.readings.peak_bytes == predicted.readings.peak_bytes > 0
        assert rehearsed.readings.static_bytes == predicted.readings.static_bytes
        assert rehearsed.equality is None
        if model != ON_HOST:  # copies by hooks are not estimated
            assert rehearsed.readings.step_seconds == pytest.approx(predicted.readings.step_seconds, rel=1e-3)
        assert "times are estimated" in next(note.text for note in rehearsed.notes if note.code == "GCP016")


def test_memory_runs_out_where_it_is_said_to_end_by_pytorchs_own_error(hollow, tmp_path):
    words = ("rehearse", "mlp:width=4096", "--device", "t4", "--memory", "128MiB", "--strategies", "none")
    done = gcprof(*words, "-o", "run", cwd=tmp_path)
    (record,) = store.load(tmp_path / "run").records

    assert done.returncode == 1, done.stderr  # no row is ok
    assert record.outcome == "out_of_memory"
    assert record.detail.startswith("CUDA out of memory. Tried to allocate")
    gcprof("rehearse", "mlp:width=4096", "--device", "t4", "--strategies", "none", "-o", "whole", cwd=tmp_path)
    readings = store.load(tmp_path / "whole").records[0].readings
    needed = f"its peak would be {bytes_text(readings.peak_bytes)}, and {bytes_text(readings.reserved_bytes)} reserved"
    assert record.detail.endswith(needed)
    assert record.environment.device_bytes == 128 * MIB


@pytest.mark.parametrize("factory", ["make", "tried"])
def test_a_factory_that_reads_the_output_is_called_on_the_cpu_and_the_steps_reads_are_named(factory, hollow, tmp_path):
    (tmp_path / "net.py").write_text(READS)
    done = gcprof("rehearse", f"net.py:{factory}", "--strategies", "none", "-o", "run", cwd=tmp_path)
    (record,) = store.load(tmp_path / "run").records
    notes = {note.code: note.text for note in record.notes}

    assert done.returncode == 0, done.stderr
    assert record.built.num_parameters == 64 * (32 + 48 + 64)  # the device itself would say 0 of every rate
    assert ("item (net.py:20)" in notes.get("GCP040", "")) == (factory == "tried")
    assert "nonzero (net.py:13)" in notes["GCP041"]
    assert f"note: {notes['GCP041']}" in gcprof("explain", f"net.py:{factory}", "--device", "t4", cwd=tmp_path).stderr


def test_offloading_takes_the_time_in_which_the_link_copies_what_autograd_saves_and_fetches_it_again(hollow, tmp_path):
    words = ("--batch-size", "2", "--strategies", "none,offload", "--device", "t4")
    gcprof("rehearse", WIDE, *words, "-o", "run", cwd=tmp_path)
    plain, offloaded = (record.readings.step_seconds[0] for record in store.load(tmp_path / "run").records)
    saved = []
    built = named(WIDE)
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda place: None):
        built.loss(built.module, built.batch)
    copied = sum(tensor.numel() * tensor.itemsize for tensor in saved if tensor.dim())

    assert offloaded - plain == pytest.approx(2 * copied / (0.8 * 15.75e9), rel=0.05)  # PCIe 3.0 x16; and launches


@pytest.mark.nightly
def test_blocks_that_are_sharded_and_checkpointed_hold_what_they_hold_where_pytorch_does_both_by_hand(hollow, tmp_path):
    model = f"{USER_MODELS / 'sharded.py'}:make"
    words = ("rehearse", model, "--ranks", "8", "--parallel", "fsdp2", "--strategies", "none,all", "--device", "h100")
    done = gcprof(*words, "-o", "run", cwd=tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(USER_MODELS)!r}); import sharded; found = sharded.peak_by_hand({{!r}}, 8)"
    )
    assert done.returncode == 0, done.stderr
    stored = records(tmp_path / "run")

    assert stored["rehearse:h100", "none"].readings.peak_bytes == hollow.python(code.format("plain"))
    assert stored["rehearse:h100", "all"].readings.peak_bytes == hollow.python(code.format("called"))


LIMITS = USER_MODELS / "hollow_limits.py"
ISIN = next(number for number, line in enumerate(LIMITS.read_text().splitlines(), start=1) if "isin(numbers" in line)
OUTCOMES = {  # of each model: outcome, detail, and the code and text of its note
    f"{USER_MODELS}/architectures.py:recurrent": ("ok", "", "GCP018: recurrent networks ran by PyTorch's own kernels"),
    f"{LIMITS}:make:kind=qr": ("ok", "", "GCP018: decompositions of matrices ran on the CPU"),
    f"{LIMITS}:make:kind=isin": ("failed", "", f"which are zeros or leftovers here: isin (hollow_limits.py:{ISIN})"),
    f"{USER_MODELS}/broken.py:wrong_shape": ("failed", "mat1 and mat2 shapes cannot be multiplied", None),
    f"{LIMITS}:make:kind=elsewhere": ("failed", "to be on the same device", None),
}  # fmt: skip


def test_what_the_device_lacks_is_done_otherwise_and_said_and_a_mistake_of_the_user_is_no_limit(hollow, here, subtests):
    gcprof("rehearse", ",".join(OUTCOMES), "--strategies", "none", "--cudnn-workspace", "1MiB", "-o", "run", cwd=here)

    records = store.load(here / "run").records
    assert [str(record.case.model) for record in records] == list(OUTCOMES)
    for record in records:
        outcome, detail, note = OUTCOMES[str(record.case.model)]
        with subtests.test(str(record.case.model)):
            assert record.outcome == outcome
            assert detail in (record.detail or "")
            notes = [f"{note.code}: {note.text}" for note in record.notes if note.code in ("GCP018", "GCP041")]
            assert [note in text for text in notes] == ([True] if note else [])
            assert outcome != "ok" or record.readings.peak_bytes > record.readings.saved_bytes > 0
