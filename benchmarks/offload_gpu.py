"""Inputs of checkpoints in host memory, on a GPU: `python -m benchmarks.offload_gpu [--steps N]`.

GPT-2 small on random tokens, its blocks checkpointed, with the inputs on the device and in host memory, by
deterministic algorithms: whether all parameters are equal to the bit after 50 steps, peaks by the allocator, median
step times by CUDA events, and the rate of the copies. `GCPROF_HOLLOW=h100` is a dry run, whose values and times mean
nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic, before CUDA begins

if os.environ.get("GCPROF_HOLLOW"):
    from profiler.rehearsal.device import open_if_asked

    open_if_asked()  # before torch is imported

import torch
from torch.utils.checkpoint import checkpoint
from transformers import GPT2Config, GPT2LMHeadModel

from profiler.training.checkpointing.host_memory import HostMemory, OffloadedInput

WARMUP = 3


class Checkpointed:
    """A block's forward under a checkpoint."""

    def __init__(self, block: torch.nn.Module, around: Callable[..., object] | None) -> None:
        self._forward, self._around = block.forward, around

    def __call__(self, *given: Any, **keywords: Any) -> Any:
        def under(function: Callable[..., Any], *given: Any, **keywords: Any) -> Any:
            return checkpoint(function, *given, use_reentrant=False, **keywords)

        return (
            self._around(under, self._forward, *given, **keywords)
            if self._around
            else under(self._forward, *given, **keywords)
        )


def train(kind: str, steps: int, batch: int, time: int) -> tuple[dict[str, float], list[torch.Tensor]]:
    """Train with what is checkpointed as `kind` says; return figures and the parameters."""
    torch.manual_seed(0)
    model: Any = GPT2LMHeadModel(GPT2Config(n_positions=max(time, 1024), attn_pdrop=0.1))
    model = model.cuda().train()
    model.config.use_cache = False
    memory, blocks = HostMemory(), list(model.transformer.h)
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if kind != "none":
            is_sent = kind == "host memory" and after is not None
            block.forward = Checkpointed(block, OffloadedInput(memory, after, least=1 << 20) if is_sent else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(1)
    events, losses = [], []
    torch.cuda.reset_peak_memory_stats()
    for _ in range(steps):
        tokens = torch.randint(50257, (batch, time), generator=generator).cuda()
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    events.append(torch.cuda.Event(enable_timing=True))
    events[-1].record()
    torch.cuda.synchronize()
    spans = [one.elapsed_time(other) for one, other in pairwise(events)]
    figures = {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "median_milliseconds": round(median(spans[WARMUP:] or spans), 3),
        "host_bytes": memory.nbytes,
        "last_loss": float(losses[-1]),
    }
    return figures, [parameter.detach().cpu() for parameter in model.parameters()]


def copy_rate(nbytes: int = 1 << 28) -> dict[str, float]:
    """Return the bytes per second of copies of pinned memory, to the host and back."""
    device, host = (
        torch.empty(nbytes, dtype=torch.uint8, device="cuda"),
        torch.empty(nbytes, dtype=torch.uint8).pin_memory(),
    )
    rates = {}
    for word, to, source in (("to_host", host, device), ("to_device", device, host)):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        to.copy_(source, non_blocking=True)
        first.record()
        for _ in range(4):
            to.copy_(source, non_blocking=True)
        last.record()
        torch.cuda.synchronize()
        rates[f"{word}_bytes_per_second"] = 4 * nbytes / (first.elapsed_time(last) / 1e3 or float("nan"))
    return rates


def main() -> int:
    """Print a line for each kind, and whether values are equal; exit code 1 if they are not."""
    parser = argparse.ArgumentParser()
    for word, number in (("--steps", 50), ("--batch", 8), ("--time", 1024)):
        parser.add_argument(word, type=int, default=number)
    asked = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, **copy_rate()}), flush=True)
    values: dict[str, list[torch.Tensor]] = {}
    for kind in ("none", "checkpoints", "host memory", "checkpoints again"):
        gc.collect()
        torch.cuda.empty_cache()
        figures, values[kind] = train(kind.removesuffix(" again"), asked.steps, asked.batch, asked.time)
        print(json.dumps({"kind": kind, **figures}), flush=True)
    truth = values["checkpoints"]
    equal = {kind: all(map(torch.equal, found, truth)) for kind, found in values.items()}
    print(json.dumps({"steps": asked.steps, "equal_to_checkpoints": equal}), flush=True)
    return int(not equal["host memory"])


if __name__ == "__main__":
    sys.exit(main())
