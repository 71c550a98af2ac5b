"""`gcprof rehearse`: PyTorch's own CUDA code on a GPU that is not there, in processes of its own."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from profiler.core import devices, gpu_specs
from profiler.core.errors import UserError
from profiler.core.record import Environment, evidence
from profiler.core.units import GIB, MIB, bytes_text
from profiler.request.device_choice import choose_device, environment
from profiler.runs import store
from tests import make
from tests.program import gcprof

pytestmark = pytest.mark.slow

MODEL = "transformer:layers=4,width=64"
USER_MODELS = Path(__file__).parent / "user_models"
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

DIES = """
import os
import torch
from torch import nn

def make(batch_size: int = 8):
    return nn.Linear(8, 8), torch.zeros(batch_size, 8), lambda output: os.abort()
"""

LEAN = """
import sys
import torch
from torch import nn

def loss(output):
    assert not {"sympy", "torch._dynamo.convert_frame"} & sys.modules.keys()
    return output.sum()

def make(batch_size: int = 8):
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.zeros(batch_size, 8), loss
"""

ASKS = """
import torch
import torchvision
from torch import nn

class Net(nn.Linear):
    def forward(self, x):
        torch.eye(8, device=x.device).to_sparse().coalesce()
        torchvision.ops.nms(x[:, :4], x[:, 4], 0.5)
        out = super().forward(x)
        if not out.isfinite().all():
            raise ValueError("not finite")
        return out.mean()

def make(batch_size: int = 8):
    return nn.Sequential(Net(64, 64)), torch.zeros(batch_size, 64), lambda output: output
"""

FAILS = """
from torch import nn, zeros

class Net(nn.Linear):
    def forward(self, x):
        kept = (x[:, 0] > -1).nonzero().shape[0]
        return super().forward(x.view(kept, 64)).mean()

def make(batch_size: int = 8):
    return nn.Sequential(Net(64, 64)), zeros(batch_size, 64), lambda output: output
"""


def records(folder):
    return {(record.case.device, str(record.case.strategy)): record for record in store.load(folder).records}


@pytest.fixture(scope="module")
def both(hollow, tmp_path_factory):
    """A model rehearsed and predicted on two GPUs; and what the program said."""
    here = tmp_path_factory.mktemp("both")
    words = ("predict", MODEL, "--strategies", "all", "--batch-size", "4", "--device", "h100", "--rehearse")
    done = gcprof(*words, "-o", "run", cwd=here)
    assert done.returncode == 0, done.stderr
    return done, records(here / "run"), here


def test_the_rehearsal_and_the_prediction_stand_beside_each_other_to_the_byte(both):
    _, stored, _ = both

    for strategy in ("none", "all"):
        rehearsed, predicted = stored["rehearse:h100", strategy], stored["fake:h100", strategy]
        assert evidence(rehearsed.case, rehearsed.environment) == "rehearsed"
        assert evidence(predicted.case, predicted.environment) == "predicted"
        assert rehearsed.readings.peak_bytes == predicted.readings.peak_bytes > 0
        assert rehearsed.readings.static_bytes == predicted.readings.static_bytes


def test_a_rehearsal_has_no_gradients_and_the_times_that_a_trace_estimates(both):
    done, stored, _ = both
    head = next(line for line in done.stdout.splitlines() if line.startswith("strategy"))

    for strategy in ("none", "all"):
        rehearsed, traced = stored["rehearse:h100", strategy], stored["fake:h100", strategy]
        assert rehearsed.equality is None
        assert rehearsed.readings.step_seconds == pytest.approx(traced.readings.step_seconds, rel=1e-3)
        assert "times are estimated" in next(note.text for note in rehearsed.notes if note.code == "GCP016")
    assert "gradients" not in head
    assert "rehearsed, not measured" in done.stdout


def test_it_is_the_same_bytes_as_where_the_whole_process_sees_that_gpu(both, hollow):
    _, stored, here = both
    words = ("run", "--model", MODEL, "--strategies", "all", "--batch-size", "4", "--device", "cuda", "--rounds", "1")
    done = hollow.gcprof(*words, "-o", "seen", cwd=here, device="h100")
    assert done.returncode == 0, done.stderr

    for (_, strategy), record in records(here / "seen").items():
        estimated = {f"{phase}_seconds": None for phase in ("forward", "backward", "optimizer", "step")}
        assert record.readings == msgspec.structs.replace(stored["rehearse:h100", strategy].readings, **estimated)


@pytest.mark.nightly
def test_every_row_of_a_command_is_the_same_row_alone_and_one_that_dies_takes_no_other_with_it(hollow, tmp_path):
    (tmp_path / "dies.py").write_text(DIES)
    words = ("rehearse", f"dies.py:make,{MODEL}", "--device", "t4,h100", "--strategies", "sqrt,all")
    done = gcprof(*words, "-o", "mixed", cwd=tmp_path)
    assert "crashed" in done.stdout, done.stderr
    for gpu in ("t4", "h100"):
        for strategy in ("sqrt", "all"):
            words = ("rehearse", MODEL, "--device", gpu, "--strategies", strategy)
            gcprof(*words, "-o", f"alone-{gpu}-{strategy}", cwd=tmp_path)

    rows = store.load(tmp_path / "mixed").records
    alone = {
        record.case: record for folder in tmp_path.glob("alone-*") for record in store.load(folder).records
    }  # a baseline is also there before the others, each time the same
    assert len(alone) == 6
    for record in rows:
        if "dies" in str(record.case.model):
            assert record.outcome in ("crashed", "skipped")
        else:
            assert record.readings == alone.pop(record.case).readings
    assert not alone


def test_memory_runs_out_where_it_is_said_to_end_by_pytorchs_own_error(hollow, tmp_path):
    words = ("rehearse", "mlp:width=4096", "--device", "t4", "--memory", "128MiB", "--strategies", "none")
    done = gcprof(*words, "-o", "run", cwd=tmp_path)
    (record,) = store.load(tmp_path / "run").records

    assert done.returncode == 1, done.stderr  # no row is ok
    assert record.outcome == "out_of_memory"
    assert record.detail.startswith("CUDA out of memory. Tried to allocate")
    assert "total capacity of 128.00 MiB" in record.detail
    whole = gcprof("rehearse", "mlp:width=4096", "--device", "t4", "--strategies", "none", "-o", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    readings = store.load(tmp_path / "whole").records[0].readings
    needed = f"its peak would be {bytes_text(readings.peak_bytes)}, and {bytes_text(readings.reserved_bytes)} reserved"
    assert record.detail.endswith(needed)
    assert record.environment.device_bytes == 128 * MIB
    assert "out of memory (rehearsed)" in done.stdout


def test_what_the_context_takes_is_not_there_for_tensors(hollow, tmp_path):
    words = ("rehearse", "mlp", "--device", "t4", "--strategies", "none", "--memory", "1GiB", "--context", "100MiB")
    done = gcprof(*words, "-o", "run", cwd=tmp_path)
    (record,) = store.load(tmp_path / "run").records

    assert done.returncode == 0, done.stderr
    assert record.case.device == f"rehearse:t4:memory={GIB},context={100 * MIB}"
    assert record.readings.device_bytes == record.readings.reserved_bytes + 100 * MIB


def test_a_step_that_nearly_fills_the_gpu_is_called_too_near_to_tell(hollow, tmp_path):
    words = ("rehearse", "mlp", "--device", "t4", "--strategies", "none", "--memory")
    near = gcprof(*words, "600MiB", cwd=tmp_path)
    far = gcprof(*words, "800MiB", cwd=tmp_path)

    assert "GCP042" in near.stdout
    assert "too near to tell whether it fits" in near.stdout
    assert "GCP042" not in far.stdout


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


def test_sizes_without_a_tag_and_the_users_own_checks_are_named_as_reads_of_values(hollow, tmp_path):
    (tmp_path / "net.py").write_text(ASKS)
    done = gcprof("rehearse", "net.py:make", "--strategies", "none", "-o", "run", cwd=tmp_path)
    (record,) = store.load(tmp_path / "run").records
    (text,) = [note.text for note in record.notes if note.code == "GCP041"]

    assert done.returncode == 0, done.stderr  # the check for finite values passes
    assert "_to_sparse (net.py:8)" in text
    assert "nms (net.py:9)" in text
    assert "item (net.py:11)" in text


def test_a_step_that_fails_after_it_read_values_says_that_they_were_zeros(hollow, tmp_path):
    (tmp_path / "net.py").write_text(FAILS)
    done = gcprof("rehearse", "net.py:make", "--strategies", "none", "-o", "run", cwd=tmp_path)
    (record,) = store.load(tmp_path / "run").records

    assert done.returncode == 1, done.stderr
    assert record.outcome == "failed"
    assert [(note.code, note.text) for note in record.notes] == [
        ("GCP041", "the step reads values, which are zeros or leftovers here: nonzero (net.py:6)")
    ]
    assert "nonzero (net.py:6)" in done.stderr


def test_initialisers_and_offloading_read_no_value_that_a_size_follows_from(hollow, tmp_path):
    words = ("torchvision:vit_b_16:size=32,classes=10", "--batch-size", "1", "--strategies", "offload")
    done = gcprof("rehearse", *words, "-o", "run", cwd=tmp_path)
    codes = {note.code for record in store.load(tmp_path / "run").records for note in record.notes}

    assert done.returncode == 0, done.stderr
    assert not codes & {"GCP040", "GCP041"}


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_one_process_as_the_first_of_two_ranks_holds_what_it_holds_beside_the_other(hollow, tmp_path, way):
    ranks = ("--ranks", "2", "--parallel", way, "--strategies", "all", "--batch-size", "2")
    alone = gcprof("rehearse", MODEL, *ranks, "--device", "h100", "-o", "alone", cwd=tmp_path)
    words = ("run", "--model", MODEL, *ranks, "--device", "cuda", "--rounds", "1", "--verify", "off")
    together = hollow.gcprof(*words, "-o", "together", cwd=tmp_path, device="h100,count=2")
    assert alone.returncode == together.returncode == 0, alone.stderr + together.stderr
    rehearsed, of_two = (records(tmp_path / name) for name in ("alone", "together"))

    for (_, strategy), record in of_two.items():
        first, readings = record.readings.ranks[0], rehearsed["rehearse:h100", strategy].readings
        assert readings.peak_bytes == first.peak_bytes
        assert readings.saved_bytes == first.saved_bytes
        assert readings.static_bytes == first.static_bytes


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["called", "wrapped"])
def test_blocks_that_are_sharded_and_checkpointed_hold_what_they_hold_where_pytorch_does_both_by_hand(
    hollow, tmp_path, how
):
    model = f"{USER_MODELS / 'sharded.py'}:make"
    words = ("rehearse", model, "--ranks", "8", "--parallel", "fsdp2", "--strategies", "none,all", "--device", "h100")
    done = gcprof(*words, "-o", "run", cwd=tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(USER_MODELS)!r}); import sharded; found = sharded.peak_by_hand({{!r}}, 8)"
    )
    assert done.returncode == 0, done.stderr
    stored = records(tmp_path / "run")

    assert stored["rehearse:h100", "none"].readings.peak_bytes == hollow.python(code.format("plain"))
    assert stored["rehearse:h100", "all"].readings.peak_bytes == hollow.python(code.format(how))


@pytest.mark.nightly
def test_max_batch_finds_where_pytorch_itself_runs_out(hollow, tmp_path):
    words = ("max-batch", MODEL, "--memory", "700MiB", "--strategies", "none", "--rehearse", "--device", "t4", "--json")
    done = gcprof(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "results").glob("*/manifest.json")
    stored = {
        record.case.batch_size: record for record in store.load(run.parent).records if record.case.strategy == "none"
    }
    largest = json.loads(done.stdout)["strategies"][0]["batch_size"]

    assert set(stored) == {largest, largest + 1}
    assert stored[largest].outcome == "ok"
    assert stored[largest].readings.device_bytes <= 700 * MIB
    assert stored[largest + 1].outcome == "out_of_memory"


# words


@pytest.mark.parametrize(
    ("word", "resolved"),
    [
        ("rehearse:h100", "rehearse:h100"),
        ("rehearse:T4:memory=8GiB", f"rehearse:t4:memory={8 * GIB}"),
        ("rehearse:t4:memory=50%", f"rehearse:t4:memory={gpu_specs.find('t4').memory_bytes // 2}"),
        ("rehearse:v100:context=500MiB,memory=8GiB", f"rehearse:v100-16:memory={8 * GIB},context={500 * MIB}"),
    ],
)
def test_a_gpu_is_named_by_its_word_and_sizes_in_bytes(word, resolved):
    assert choose_device(word, ["cpu"]) == str(devices.parse(resolved)) == resolved


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("rehearse:h1000", "no GPU is called 'h1000'"),
        ("rehearse:t4:memory=0", "--device: 'rehearse:t4:memory=0': memory cannot be '0'"),
        ("rehearse:t4:memory=11", "a rehearsed t4 has 11 B, of which CUDA takes 0 B: nothing is left for tensors"),
        ("rehearse:t4:memory=101%", "memory cannot be '101%'"),
        ("rehearse:t4:memory=1GiB,context=1GiB", "nothing is left for tensors"),
        ("rehearse:t4:size=8GiB", "has no size"),
    ],
)
def test_what_is_no_such_gpu_is_refused(word, message):
    with pytest.raises(UserError) as refused:
        devices.absent(word)

    assert message in refused.value.message


def test_a_rehearsed_case_foresees_the_same_gpu_and_is_no_measurement():
    case = make.case(device="rehearse:h100:memory=1073741824")

    assert case.is_rehearsed
    assert not case.is_predicted
    assert case.foreseen.device == "fake:h100"
    assert case.twin == make.case(device="cuda:0").twin
    assert evidence(case, None) == "rehearsed"


def test_the_environment_names_the_gpu_as_hollow_before_it_is_opened():
    versions = Environment(gcprof="0.1.0", python="3.11.2", system="Linux x86_64", driver="570.1", device_uuid="GPU-1")
    device = environment("rehearse:t4:memory=1073741824", {"cpu": versions})

    assert device.device_name == f"Hollow {gpu_specs.find('t4').name}"
    assert device.device_bytes == GIB
    assert (device.driver, device.device_uuid) == (None, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["run", "--model", "mlp", "--device", "rehearse:h100", "--rounds", "2"],
            "--rounds has no effect on a rehearsal",
        ),
        (["run", "--model", "mlp", "--device", "rehearse:h100", "--max-samples", "9"], "where no step is timed"),
        (["run", "--model", "mlp", "--device", "rehearse:h100,fake:t4"], "is more than one device"),
        (["run", "--model", "mlp", "--device", "rehearse:h100", "--engine", "ray"], "--engine ray does not rehearse"),
        (["predict", "mlp", "--rehearse"], "--rehearse is for one GPU"),
        (["rehearse", "mlp", "--cudnn-workspace", "x"], "gcprof: --cudnn-workspace cannot be 'x'"),
        (["rehearse", "mlp", "--memory", "11"], "gcprof: --memory cannot be '11': 11 B or 11 %?"),
    ],
)
def test_options_that_a_rehearsal_has_not_are_refused_before_anything_starts(no_server, here, capsys, words, message):
    from profiler.cli import answer

    assert answer(words) == 2
    assert message in capsys.readouterr().err
