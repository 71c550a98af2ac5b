"""A pass leaves nothing behind: what lives after it is what lived before, under every strategy."""

import re
from pathlib import Path

import pytest
import torch

from profiler.core.case import OPERATORS, PASSES, Choice, Trial
from profiler.core.record import Record
from profiler.measuring.trial import measure
from tests import make
from tests.conftest import notes
from tests.left_behind import bytes_left_by, bytes_left_on_cuda_by
from tests.plans import EVERY, written

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device (gpu)")]
MODELS = ("mlp:width=16,depth=5", "transformer:layers=4,width=32,sequence=16,vocabulary=50", "cifar-resnet:depth=2")
STRATEGIES = [choice for choices in EVERY.values() for choice in choices]
STAGES = ((), *((name,) for name in (*PASSES, OPERATORS)))  # without any pass, the model is built


def run(model: str, strategy: str, passes: tuple[str, ...], **fields: object) -> Record:
    """Passes of a trial. It is given no digest of the baseline, so that the equality pass runs `none` too."""
    fields = {"model": Choice(model), "batch_size": 4, "warmup": 0, "samples": 1, "device": "cpu", **fields}
    return measure(Trial(case=make.case(strategy, **fields), passes=passes, digests={}))


@pytest.mark.parametrize(
    ("model", "device"),
    [
        (MODELS[0], "cpu"),
        *(pytest.param(model, "cpu", marks=pytest.mark.nightly) for model in MODELS[1:]),
        *(pytest.param(model, "cuda:0", marks=GPU) for model in MODELS),
    ],
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_pass_of_every_strategy_leaves_no_byte(model, device, strategy, tmp_path):
    choice = written(strategy, model, tmp_path)
    run(model, choice, PASSES, device=device)  # what is made once in a process is there
    left_by = bytes_left_by if device == "cpu" else bytes_left_on_cuda_by

    left = {
        "+".join(passes): left_by(lambda passes=passes: run(model, choice, passes, device=device)) for passes in STAGES
    }

    assert left == dict.fromkeys(left, 0)


OWN = """
import torch
from torch import nn

MODELS, ONE = [], None


def clean(batch_size=4):
    net = nn.Sequential(nn.Linear(16, 16), nn.Sigmoid(), nn.Linear(16, 16))
    return net, torch.ones(batch_size, 16), lambda output: output.mean()


def kept(batch_size=4):
    MODELS.append(clean())
    return MODELS[-1]


def once(batch_size=4):
    global ONE
    ONE = ONE or clean()
    return ONE
"""
LAYER = (16 * 16 + 16) * 4  # bytes of a linear layer of OWN
BATCH = 4 * 16 * 4
DEVICES = ["cpu", pytest.param("cuda:0", marks=GPU)]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of models, some of which are kept."""
    name = re.sub(r"\W", "_", f"own_{tmp_path.name}")
    (tmp_path / f"{name}.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def on_device(nbytes: int, device: str) -> int:
    return nbytes if device == "cpu" else -(-nbytes // 512) * 512


def stated(text: str) -> float:
    """Bytes as a note states them, in three digits."""
    number, unit = re.match(r"([\d.,]+) (B|KiB|MiB)", text).groups()
    return float(number.replace(",", "")) * {"B": 1, "KiB": 2**10, "MiB": 2**20}[unit]


@pytest.mark.parametrize("device", DEVICES)
def test_a_strategy_that_keeps_its_model_is_found_by_the_product_and_told_from_the_model(device, own):
    (text,) = notes(run(f"{own}:clean", "_planted:fault=leak", ("memory",), device=device), "GCP038")
    parameters = 2 * (on_device(16 * 16 * 4, device) + on_device(16 * 4, device))  # of the build pass, and its batch
    assert stated(text) >= 0.99 * (parameters + on_device(BATCH, device))
    assert "_planted:fault=leak keeps them; the model alone leaves nothing behind" in text


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("strategy", ["none", "segments:k=1"])
def test_a_model_of_the_users_that_is_kept_is_said_to_be_kept_by_its_own_code(device, strategy, own):
    """On the CPU it is in no number; on CUDA it is in the peak, which is invalid."""
    runs = {name: run(f"{own}:{name}", strategy, PASSES, device=device) for name in ("clean", "kept", "once")}

    assert notes(runs["clean"], "GCP038") == notes(runs["once"], "GCP038") == []
    (text,) = notes(runs["kept"], "GCP038")
    assert stated(text) >= 0.99 * 2 * LAYER
    assert "the model's own code keeps them, without checkpointing too" in text
    moved = runs["kept"].readings.peak_bytes - runs["clean"].readings.peak_bytes
    if device == "cpu":
        assert (runs["kept"].outcome, moved) == ("ok", 0)
        assert "they are not in any figure" in text
    else:
        assert runs["kept"].outcome == "invalid"
        assert stated(runs["kept"].detail) == pytest.approx(moved, rel=0.01)
