"""A module of the caller's is rehearsed in another process: with the record that a command gives for the same model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import profiler
from profiler.core.case import encode
from profiler.core.errors import Unsupported
from tests import live_models
from tests.hollow import Hollow

FACTORIES = ("tied", "convolutions", "masked", "hooked")
PRECISIONS = ("fp32", "amp-bf16")
OF_ONE_RUN = ("stage_seconds", "environment", "evidence")  # the last is derived, for readers of JSON
SCRIPT = """
import torch, profiler
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
    def forward(self, x):
        for block in self.blocks:
            x = block(x).relu()
        return x

loss = lambda output, targets: ((output - targets) ** 2).mean()
batch = torch.randn(512, 64), torch.zeros(512, 64)
print(profiler.explain(Net(), batch, "all", loss=loss, device="h100"))
print(profiler.plan(lambda: (Net(), batch, loss), "max", device="h100").plan)
"""


class Connection:
    """What a process keeps for itself, and a copy of the module shares."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Connection:
        return self

    def __reduce__(self) -> str:
        raise TypeError("a connection cannot be sent")


@pytest.fixture
def estimates(hollow: Hollow) -> None:
    """Here functions of Python rehearse, as they do for users."""


def plain(record: dict[str, Any]) -> dict[str, Any]:
    """A record without its model's name and what is of one run."""
    case = {key: value for key, value in record["case"].items() if key != "model"}
    return {**{key: value for key, value in record.items() if key not in OF_ONE_RUN}, "case": case}


@pytest.mark.nightly
@pytest.mark.parametrize("factory", FACTORIES)
def test_a_live_module_has_the_record_of_its_factory(factory, here):
    words = [f"{live_models.__file__}:{factory}", "--strategies", "all", "--precision", ",".join(PRECISIONS)]
    command = [sys.executable, "-m", "profiler", "predict", *words, "--device", "h100", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    _, *commanded = sorted(json.loads(done.stdout)["records"], key=lambda record: record["case"]["strategy"] != "none")
    module, batch, loss = getattr(live_models, factory)()

    live = [
        profiler.predict(module, "all", batch=batch, loss=loss, device="h100", precision=precision)
        for precision in PRECISIONS
    ]

    assert [plain(json.loads(encode(record))) for record in live] == [
        plain(record) for record in commanded if record["case"]["strategy"] == "all"
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("by", ["file", "command"])
def test_what_a_script_defines_is_sent_whole(by, here):
    Path("train.py").write_text(SCRIPT, encoding="utf-8")
    words = ["train.py"] if by == "file" else ["-c", SCRIPT]

    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)

    assert "Net, all, a batch of its own, sgd, fp32, h100: rehearsed" in done.stdout, done.stderr
    assert "[" not in done.stdout.splitlines()[-1]  # a plan for the whole memory keeps all blocks


@pytest.mark.slow
def test_what_cannot_be_pickled_is_estimated_and_says_why():
    module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    module.connection = Connection()
    batch = torch.randn(512, 64), torch.zeros(512, 64)

    record = profiler.predict(module, batch=batch, loss=nn.functional.mse_loss, device="h100")
    explained = profiler.explain(module, batch, loss=nn.functional.mse_loss, device="h100")

    assert record.case.device == "fake:h100"
    assert [note.text for note in record.notes if note.code == "GCP068"] == [explained.notes[-1]]
    assert "a connection cannot be sent" in explained.notes[-1]
    with pytest.raises(Unsupported, match="a connection cannot be sent"):
        profiler.predict(module, batch=batch, loss=nn.functional.mse_loss, device="rehearse:h100")


@pytest.mark.slow
def test_a_rehearsed_module_stays_as_it_is():
    module, batch, loss = live_models.tied()
    before = {name: (tensor, tensor._version) for name, tensor in module.state_dict(keep_vars=True).items()}

    profiler.timeline(module, batch, loss=loss, device="h100")

    assert {name: (tensor, tensor._version) for name, tensor in module.state_dict(keep_vars=True).items()} == before
    assert all(parameter.grad is None for parameter in module.parameters())
    assert not torch.cuda.is_initialized()
