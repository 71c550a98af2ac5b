"""Words for devices where there is one (rows 8 and 10): needs a CUDA device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from profiler.cli import answer
from tests.program import gcprof

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device (gpu)")]
RUN = ("run", "--model", "mlp", "--strategies", "none", "--rounds", "1", "--samples", "1", "--warmup", "0")


def test_fault_8_a_device_that_is_hidden_is_none(here: Path):
    done = gcprof(*RUN, "--device", "cuda", cwd=here, CUDA_VISIBLE_DEVICES="")

    assert done.returncode == 3
    assert done.stderr.startswith("gcprof: --device: there is no 'cuda': torch sees no CUDA device here\n")


def test_fault_8_auto_measures_the_cpu_where_the_device_is_hidden(here: Path):
    done = gcprof(*RUN, cwd=here, CUDA_VISIBLE_DEVICES="")

    assert done.returncode == 0
    assert done.stderr.startswith("no CUDA device here: measuring the CPU (")


def test_fault_10_an_index_out_of_range_is_answered_with_the_devices(here: Path, shared: None, capsys: Any):
    assert answer([*RUN, "--device", "cuda:99"]) == 2

    first, hint = capsys.readouterr().err.splitlines()
    names = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    assert first == "gcprof: --device: 'cuda:99' is not a device here"
    assert hint == f"hint: choose from auto, {', '.join(names)}"
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("uuid", ["GPU-not-one", "MIG-GPU-not-one/1/0"])
def test_fault_10_a_uuid_that_no_device_has_leaves_none_visible(uuid: str, here: Path):
    done = gcprof(*RUN, "--device", "cuda", cwd=here, CUDA_VISIBLE_DEVICES=uuid)

    assert done.returncode == 3
    assert "Traceback" not in done.stderr
