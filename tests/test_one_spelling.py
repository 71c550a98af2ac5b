"""One spelling for one thing: a GPU to predict for, and the strategies."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.cli import answer
from profiler.core.devices import to_predict, to_rehearse
from profiler.core.errors import UserError
from profiler.request.device_choice import any_device, choose_device
from profiler.workflows import absent_gpus


@pytest.mark.slow
@pytest.mark.parametrize("word", ["t4", "T4", "v100", "fake:t4"])
def test_a_gpu_to_predict_for_is_its_name_with_or_without_a_prefix(word: str):
    meant = any_device(to_predict(word))

    assert any_device(absent_gpus.planned(word, say=print, is_estimated=True) or "") == meant
    assert to_rehearse(word) == f"rehearse:{word.removeprefix('fake:')}"


@pytest.mark.parametrize("look", [any_device, lambda word: choose_device(word, ["cpu"])])
def test_where_a_step_is_measured_a_gpus_name_is_refused_with_what_would_do(look):
    with pytest.raises(UserError) as raised:
        look("t4")

    assert raised.value.message == "--device: 't4' is not a device here"
    assert raised.value.hint == (
        "--device fake:t4 predicts for it, --device rehearse:t4 rehearses it; cuda measures here"
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", ["stages", "plan --budget max --no-measure"])
def test_what_plans_rehearses_a_gpu_by_its_name(command: str, hollow, here: Path, shared, capsys):
    words = command.split()
    assert answer([*words, "mlp", "--device", "t4"]) == 0
    by_name = capsys.readouterr().out

    assert answer([*words, "mlp", "--device", "rehearse:t4"]) == 0
    assert capsys.readouterr().out == by_name
