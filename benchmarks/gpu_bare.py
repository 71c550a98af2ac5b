"""Loops of plain PyTorch on the CUDA device that is here: `python -m benchmarks.gpu_bare [WORD ...]`.

The models and batches are gcprof's; the loop, the checkpoints and the figures are not: they are what
`torch.cuda.max_memory_allocated` and events say. Each line also says whether the gradients of the first step equal
those of the plain loop to the bit. A second plain loop shows whether the step is deterministic at all.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from profiler.rehearsal.device import open_if_asked

open_if_asked()  # of a dry run: before torch is imported

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint, checkpoint_sequential  # noqa: E402

from profiler.core import catalogue  # noqa: E402
from profiler.core.case import Choice  # noqa: E402
from profiler.training import models  # noqa: E402

STEPS = 13
Apply = Callable[[nn.Module], None]  # checkpoints a model in place
Gradients = dict[str, torch.Tensor]


def main() -> int:
    for model, batch_size, optimizer, name, checkpointed in LOOPS:
        if sys.argv[1:] and not any(word in model for word in sys.argv[1:]):
            continue
        reference: Gradients | None = None
        for strategy, apply in {"none": _unchanged, "none again": _unchanged, name: checkpointed}.items():
            began = time.monotonic()
            figures, gradients = loop(model, batch_size, optimizer, apply)
            reference = reference or gradients
            is_equal = all(torch.equal(reference[key], gradients[key]) for key in reference)
            row = {"model": model, "batch_size": batch_size, "strategy": strategy, **figures, "equal": is_equal}
            print(json.dumps({**row, "seconds": round(time.monotonic() - began, 1)}), flush=True)
    return 0


def loop(model: str, batch_size: int, optimizer: str, apply: Apply) -> tuple[dict[str, Any], Gradients]:
    """Return the bytes and the milliseconds of a loop as one writes it, and the first step's gradients on the host."""
    torch._C._cuda_clearCublasWorkspaces()  # which torch keeps before 2.15
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    build, options = catalogue.load(Choice(model), models.TABLE)
    torch.manual_seed(0)
    with torch.device("cuda:0"):
        work = build(batch_size=batch_size, **options)
    apply(work.module)
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer]
    made = kind(work.module.parameters(), lr=1e-5)
    milliseconds, gradients = [], {}
    for step in range(STEPS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        made.zero_grad()
        torch.cuda.synchronize()
        if step == 1:
            torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_allocated()
        begin.record()
        loss = work.loss(work.module, work.batch)
        saved = torch.cuda.memory_allocated() - start
        loss.backward()
        if step == 0:
            named = work.module.named_parameters()
            gradients = {name: weight.grad.cpu() for name, weight in named if weight.grad is not None}
        del loss
        made.step()
        end.record()
        end.synchronize()
        milliseconds.append(round(begin.elapsed_time(end), 3))
    figures = {
        "peak_bytes": torch.cuda.max_memory_allocated() - before,
        "saved_bytes": saved,
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "median_milliseconds": median(milliseconds[3:]),
        "milliseconds": milliseconds,
    }
    return figures, gradients


def _unchanged(module: nn.Module) -> None:
    return None


def _in_segments(module: nn.Module) -> None:
    trunk = list(module.trunk)
    module.trunk.forward = lambda x: checkpoint_sequential(trunk, 8, x, use_reentrant=False)


def _by_transformers(module: nn.Module) -> None:
    module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def _every_block(module: nn.Module) -> None:
    for layer in (module.layer1, module.layer2, module.layer3, module.layer4):
        for block in layer:
            block.forward = lambda x, run=block.forward: checkpoint(run, x, use_reentrant=False)


LOOPS: tuple[tuple[str, int, str, str, Apply], ...] = (
    ("mnist-cnn", 64, "sgd", "checkpoint_sequential, 8", _in_segments),
    ("hf:bert:head=classification,sequence=128", 64, "adamw", "gradient_checkpointing_enable", _by_transformers),
    ("torchvision:resnet152", 32, "sgd", "every block", _every_block),
)

if __name__ == "__main__":
    sys.exit(main())
