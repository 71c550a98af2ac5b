"""A module of the caller's is rehearsed in another process: with the record that a command gives for the same model."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import profiler
from profiler.core.case import encode
from tests import live_models
from tests.hollow import Hollow

FACTORIES = ("tied", "convolutions", "masked", "hooked")
PRECISIONS = ("fp32", "amp-bf16")
OF_ONE_RUN = ("stage_seconds", "environment", "evidence")  # the last is derived, for readers of JSON


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
        profiler.predict(module, strategy="all", batch=batch, loss=loss, device="h100", precision=precision)
        for precision in PRECISIONS
    ]

    assert [plain(json.loads(encode(record))) for record in live] == [
        plain(record) for record in commanded if record["case"]["strategy"] == "all"
    ]
