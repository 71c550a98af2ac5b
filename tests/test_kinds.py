"""Devices that are named by the kind of GPU: in words, in cases, in records; no GPU is needed."""

import pytest

from profiler.analysis.rows import rows
from profiler.cli import answer
from profiler.core.errors import UserError
from profiler.core.gpu_specs import parse, to_predict, to_rehearse
from profiler.core.record import Environment, Record
from profiler.engines import EngineChoice
from profiler.request.device_choice import any_device
from profiler.request.spec import Request, check
from profiler.workflows import stages
from tests import make
from tests.gpu_records import NOTES


@pytest.mark.parametrize(
    ("kind", "name", "is_of_it"),
    [
        ("a100-80g", "NVIDIA A100-SXM4-80GB", True),
        ("rtx-3090", "NVIDIA GeForce RTX 3090", True),
        ("l4", "NVIDIA L40S", False),
        ("a10", "NVIDIA A100-SXM4-40GB", False),
        ("a100-80g", "NVIDIA A100-PCIE-40GB", False),
    ],
)
def test_a_gpu_is_of_the_kind_that_its_name_holds_as_words(kind, name, is_of_it):
    assert parse(f"cuda:{kind}").accepts(name) is is_of_it


def test_a_prediction_is_the_twin_of_its_own_kind_alone():
    twins = {device: make.case(device=device).twin.device for device in ("cuda:a100", "fake:cuda:a100", "cuda:t4")}

    assert twins == {"cuda:a100": "cuda:a100", "fake:cuda:a100": "cuda:a100", "cuda:t4": "cuda:t4"}
    assert {make.case(device=device).twin.device for device in ("cuda:0", "cuda:7", "fake:t4", "cuda")} == {"cuda"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"gpus": "a100", "device": "cpu"}, "--gpus has no effect with --device"),
        ({"gpus": "0,1"}, "--gpus: '0' is not a kind of GPU"),
    ],
)
def test_what_is_no_list_of_kinds_is_refused(words, message):
    with pytest.raises(UserError, match=message):
        check(Request(model="mlp", **words), any_device)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("ray", {}),
        ("ray:address=127.0.0.1:6379", {"address": "127.0.0.1:6379"}),
        ("ray:address=ray://host:10001,cpus=4", {"address": "ray://host:10001", "cpus": "4"}),
        ("ray://host:10001", {"address": "ray://host:10001"}),
    ],
)
def test_an_address_may_hold_colons(text, options):
    assert (EngineChoice(text).name, EngineChoice(text).options) == ("ray", options)


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


# --- one spelling for one thing: a GPU to predict for


@pytest.mark.slow
@pytest.mark.parametrize("word", ["t4", "T4", "v100", "fake:t4"])
def test_a_gpu_to_predict_for_is_its_name_with_or_without_a_prefix(word):
    meant = any_device(to_predict(word))

    assert any_device(stages.planned(word, say=print, is_estimated=True) or "") == meant
    assert to_rehearse(word) == f"rehearse:{word.removeprefix('fake:')}"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["stages", "plan --budget max --no-measure"])
def test_what_plans_rehearses_a_gpu_by_its_name(command, hollow, here, shared, capsys):
    words = command.split()
    assert answer([*words, "mlp", "--device", "t4"]) == 0
    by_name = capsys.readouterr().out

    assert answer([*words, "mlp", "--device", "rehearse:t4"]) == 0
    assert capsys.readouterr().out == by_name
