"""Devices that are named by the kind of GPU: in words, in cases, in records; no GPU is needed."""

import pytest

from profiler.analysis.rows import rows
from profiler.cli import answer
from profiler.core.errors import UserError
from profiler.core.gpu_specs import parse, to_predict
from profiler.core.record import Environment, Record
from profiler.request.device_choice import any_device
from profiler.request.spec import Request, check
from tests import make
from tests.gpu_records import NOTES


@pytest.mark.parametrize(
    ("kind", "name", "is_of_it"),
    [
        ("rtx-3090", "NVIDIA GeForce RTX 3090", True),
        ("l4", "NVIDIA L40S", False),
        ("a10", "NVIDIA A100-SXM4-40GB", False),
    ],
)
def test_a_gpu_is_of_the_kind_that_its_name_holds_as_words(kind, name, is_of_it):
    assert parse(f"cuda:{kind}").accepts(name) is is_of_it


def test_a_prediction_is_the_twin_of_its_own_kind_alone():
    twins = {device: make.case(device=device).twin.device for device in ("cuda:a100", "fake:cuda:a100", "cuda:t4")}

    assert twins == {"cuda:a100": "cuda:a100", "fake:cuda:a100": "cuda:a100", "cuda:t4": "cuda:t4"}
    assert {make.case(device=device).twin.device for device in ("cuda:0", "cuda:7", "fake:t4", "cuda")} == {"cuda"}


def test_what_is_no_list_of_kinds_is_refused():
    with pytest.raises(UserError, match="--gpus: '0' is not a kind of GPU"):
        check(Request(model="mlp", gpus="0,1"), any_device)


def on(uuid: str, strategy: str, round: int) -> Record:
    case = make.case(strategy, device="cuda:a100")
    environment = Environment(gcprof="0.1.0", python="3.11", system="Linux", device_uuid=uuid)
    return make.record(case=case, round=round, environment=environment, seconds=(0.1, 0.1, 0.1, 0.1, 0.1, 0.1))


def test_a_ratio_of_two_gpus_of_a_kind_says_so():
    run = [on("GPU-1", "none", round) for round in (1, 2, 3)]
    run += [on(uuid, "all", round) for round, uuid in enumerate(("GPU-1", "GPU-2", "GPU-1"), start=1)]

    none, everything = rows(run)

    (note,) = [note for note in everything.notes if note.code == "GCP036"]
    assert note.text in NOTES
    assert "GCP036" not in {note.code for note in none.notes}


@pytest.mark.slow
def test_a_gpu_is_meant_and_rehearsed_by_its_name_with_or_without_a_prefix(hollow, here, shared, capsys):
    words = ["plan", "mlp", "--budget", "max", "--no-measure", "--device"]
    assert answer([*words, "t4"]) == 0
    by_name = capsys.readouterr().out

    assert answer([*words, "rehearse:t4"]) == 0
    assert capsys.readouterr().out == by_name
    assert any_device(to_predict("T4")) == any_device("fake:t4")
