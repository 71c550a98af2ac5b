"""What the watch costs a training script: `just bench-script-overhead`; on quiet cores.

A step of about 10 ms on the CPU, of four transformer blocks, in pairs of one process: with the watch's hooks, and with
none. Fails above 2 %. Whole rehearsals of scripts, on a hollow GPU, are lines of `benchmarks.answers`.
"""

import inspect
import json
import sys
import tempfile
from collections.abc import Callable
from statistics import median

from benchmarks import called, spent
from profiler.core.stats import ratio_of_pairs
from profiler.scripts.launch import INJECT
from tests.scripts import runs

STEPS, WARM_UP, STEP_RATIO = 400, 20, 1.02


def main() -> int:
    """Print what the watch costs a step; the exit code says whether it is too much on the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        words = called("benchmarks.script_overhead", "paired_steps")
        pairs = json.loads(spent(words, env=runs.environment(GCPROF_WATCH=folder)).output)
    ratio, limits = ratio_of_pairs([watched / plain for watched, plain in pairs])
    low, high = limits or (ratio, ratio)
    plain = median(plain for _, plain in pairs) * 1e3
    print(f"step on the CPU, {plain:.1f} ms: {ratio:.4f} ({low:.4f} to {high:.4f}) of it with the watch", flush=True)
    return int(ratio > STEP_RATIO)


def paired_steps() -> list[tuple[float, float]]:
    """Return the seconds of pairs of steps: with the watch, and without. In a process of its own."""
    import torch
    from torch import nn
    from torch.nn.modules import module
    from torch.optim import optimizer as optimizers

    from profiler.measuring.devices import open_device
    from profiler.measuring.meters import time as timing

    sys.path.insert(0, str(INJECT))
    vars(torch._C).pop("_cuda_attach_out_of_memory_observer", None)  # asks for a driver
    import gcprof_watch  # type: ignore[import-not-found, unused-ignore]

    gcprof_watch.Watch().begin()
    torch.set_num_threads(1)
    blocks = [nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0) for _ in range(4)]
    model = nn.Sequential(*blocks, nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(8, 40, 64)

    def step(mark: Callable[[str], None]) -> None:
        mark("forward")
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mark("end")

    step(lambda phase: None)  # hooks are there from here on
    hooks = [getattr(module, name) for name in vars(module) if name.startswith("_global_forward")]
    hooks += [optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks]
    watched, taken = torch.autograd.backward, [{} for _ in hooks]
    plain = inspect.getclosurevars(watched).nonlocals["function"]

    def switch(is_watched: bool) -> None:
        """Take the watch's hooks away, or put them back."""
        torch.autograd.backward = watched if is_watched else plain
        for hook, entries in zip(hooks, taken, strict=True):
            into, out_of = (hook, entries) if is_watched else (entries, hook)
            into.update(out_of)
            out_of.clear()

    switch(False)
    (found,) = timing.read(open_device("cpu"), step, [switch], warmup=WARM_UP, samples=STEPS)
    return list(zip(found["step_seconds"], found["plain_step_seconds"], strict=True))
