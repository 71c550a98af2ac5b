"""NVIDIA's own cuDNN plans the convolutions of a hollow device, with the workspaces of a real GPU."""

from __future__ import annotations

import pytest

from profiler.runs import store
from tests.program import gcprof
from tests.scripts.runs import rehearsed

WORKSPACES = """
import torch

def hidden(run):
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = run()
    return torch.cuda.max_memory_allocated() - max(before, torch.cuda.memory_allocated())

found = []
for channels, size in ((16, 32), (32, 16)):
    x, y = (torch.empty(64, channels, size, size, device="cuda") for _ in "xy")
    weight = torch.empty(channels, channels, 3, 3, device="cuda")
    found.append(hidden(lambda: torch.nn.functional.conv2d(x, weight, padding=1)))
    rest = [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
    found.append(hidden(lambda: torch.ops.aten.convolution_backward(y, x, weight, [0], *rest)))
    torch.cuda.empty_cache()
"""
# besides the results, of four calls of the model cifar-resnet, as an H100 with torch 2.11.0 and cuDNN 9.19 had them;
# cuDNN 9.26 plans the second one otherwise, with 9923584
MEASURED = [8398336, 73400320, 2134528, 37748736]


@pytest.mark.slow
def test_convolutions_take_the_workspaces_that_an_h100_had(hollow):
    found = hollow.python(WORKSPACES)
    assert (found[0], found[2:]) == (MEASURED[0], MEASURED[2:])
    assert found[1] in (MEASURED[1], 9923584)


SCRIPT = """
import torch
from torch import nn

model = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.randn(64, 16, 32, 32, device="cuda")).sum().backward()
optimizer.step()
"""


@pytest.mark.slow
def test_a_script_takes_them(hollow, tmp_path):
    (tmp_path / "convolutions.py").write_text(SCRIPT)
    words = ("python", "convolutions.py")

    without = rehearsed(words, cwd=tmp_path, device="h100")
    planned = rehearsed(words, cwd=tmp_path, device="h100", cudnn="nvidia")

    assert planned.figures[0].peak_bytes - without.figures[0].peak_bytes > MEASURED[0]


@pytest.mark.slow
def test_where_cudnn_faults_without_a_device_it_is_not_asked_again(hollow, tmp_path):
    """cuDNN 9.26 does for convolutions in 16 bits on compute capability 8.0; another version may plan them."""
    words = ("rehearse", "cifar-resnet", "--strategies", "none", "--precision", "bf16", "--device", "a100-40")
    done = gcprof(*words, "-o", "run", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    (record,) = store.load(tmp_path / "run").records
    assert record.outcome == "ok"
    assert record.readings.peak_bytes > record.readings.saved_bytes > 0
