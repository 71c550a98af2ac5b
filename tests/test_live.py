"""A module of the caller's is rehearsed in another process: with the record that a command gives for the same model."""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

import profiler
from profiler.core.case import encode
from profiler.core.errors import UserError
from tests import live_models
from tests.hollow import Hollow


@pytest.fixture
def estimates(hollow: Hollow) -> None:
    """Here functions of Python rehearse, as they do for users."""


@pytest.mark.nightly
def test_a_live_module_has_the_record_of_its_factory(here):
    words = ["--strategies", "all", "--precision", "amp-bf16", "--device", "h100", "--json"]
    command = [sys.executable, "-m", "profiler", "predict", f"{live_models.__file__}:make", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (commanded,) = (one for one in json.loads(done.stdout)["records"] if one["case"]["strategy"] == "all")
    module, batch = live_models.make()

    live = json.loads(encode(profiler.predict(module, batch, "all", device="h100", precision="amp-bf16")))
    for of_one_run in ("stage_seconds", "environment", "evidence"):  # the last is derived, for readers of JSON
        live[of_one_run] = commanded[of_one_run]
    live["case"]["model"] = commanded["case"]["model"]
    assert live == commanded


@pytest.mark.slow
def test_a_live_module_is_made_to_fit_and_pasted_code_has_the_bytes_and_gradients(hollow):
    """The code alone changes a copy whose step, rehearsed as it is, needs what was said, with the plain gradients."""

    def made(samples: int) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
        torch.manual_seed(0)
        module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(12)))
        return module, (torch.randn(samples, 64), torch.zeros(samples, 64))

    def stepped(module: nn.Module) -> list[torch.Tensor]:
        inputs, targets = made(8)[1]
        nn.functional.mse_loss(module(inputs), targets).backward()
        return [weight.grad for weight in module.parameters() if weight.grad is not None]

    model, batch = made(65536)
    whole = profiler.predict(model, batch, loss=nn.functional.mse_loss, device="t4").readings.peak_bytes
    assert whole is not None
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    fitted = profiler.fit(
        model, batch, whole * 7 // 10, loss=nn.functional.mse_loss, optimizer=optimizer, device="t4", context=0
    )

    assert fitted.label == "plan"
    (row,) = [row for row in fitted.fitted.rows if row is fitted.fitted.chosen]
    pasted: dict[str, Any] = {}
    exec(str(fitted.code), pasted)
    changed = made(8)[0]
    pasted["apply_levers"](changed, None)
    assert all(map(torch.equal, stepped(changed), stepped(made(8)[0])))
    again = profiler.predict(model, batch, fitted.plan, loss=nn.functional.mse_loss, device="t4").readings
    assert (again.peak_bytes, again.reserved_bytes) == (row.readings.peak_bytes, row.readings.reserved_bytes)
    assert (again.reserved_bytes or 0) <= whole * 7 // 10
    assert f"{(again.peak_bytes or 0) / 2**20:.1f}" in repr(fitted)
    assert not any(word in repr(fitted) for word in ("/tmp", "GCP009"))


def test_nothing_is_fitted_where_nothing_can_be_rehearsed(hollow):
    with pytest.raises(UserError, match="not possible here"):
        profiler.fit(nn.Linear(2, 2), torch.zeros(1, 2), "1GiB", device="cpu")
    with pytest.raises(UserError, match="not possible here: the module's output holds no loss"):
        profiler.fit(nn.Linear(2, 2), torch.zeros(1, 2), "1GiB", device="t4")
