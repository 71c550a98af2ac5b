"""What every supported torch must show, under the one that is installed: `just smoke` runs it, nightly for each."""

import json

import pytest

from tests.program import gcprof

MODELS = {  # the built-in model: its module, and the batch
    "mlp:width=512,depth=8": ("built_in.mlp(4096, width=512, depth=8)", 4096),
    "cifar-resnet": ("built_in.cifar_resnet(64)", 64),
    "transformer:layers=2,width=128": ("built_in.transformer(16, layers=2, width=128)", 16),
}
LOOP = """
import os, torch
from torch.utils.checkpoint import checkpoint
from profiler.training.models import built_in

def checkpointed(block):
    forward = block.forward
    block.forward = lambda *given: checkpoint(forward, *given, use_reentrant=False)

def peak(under_all):
    with torch.device("cuda"):
        work = {BUILD}
    work.module.train()
    if under_all:
        for name in work.blocks:
            checkpointed(work.module.get_submodule(name))
    optimizer = torch.optim.SGD(work.module.parameters(), lr=0.01)
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled={AMP}):
            loss = work.loss(work.module, work.batch)
        loss.backward()
        del loss
        optimizer.step()
    return torch.cuda.max_memory_allocated()

found = peak({ALL})
"""


@pytest.mark.nightly
@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
@pytest.mark.parametrize("model", MODELS)
def test_rehearsed_peaks_are_those_of_a_bare_loop(hollow, tmp_path, model, precision):
    written, batch_size = MODELS[model]
    code = LOOP.replace("{BUILD}", written).replace("{AMP}", str(precision != "fp32"))
    words = ("--batch-size", str(batch_size), "--precision", precision, "--strategies", "none,all", "--json")

    bare = {name: hollow.python(code.replace("{ALL}", str(name == "all"))) for name in ("none", "all")}
    done = gcprof("rehearse", model, *words, "--device", "h100", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout)["records"]
    assert {record["case"]["strategy"]: record["readings"]["peak_bytes"] for record in records} == bare
