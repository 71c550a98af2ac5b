"""What the watch costs a training script: `just bench-script-overhead`; on quiet cores.

1. A step of about 10 ms on the CPU, of four transformer blocks, in pairs of one process: with the watch's hooks, and
   with none. Fails above 2 %.
2. The same step on a hollow GPU, where the watch also reads and resets the allocator's counters and writes its lines:
   the difference in milliseconds, which a real GPU's host would pay too. Without a bound.
3. The start of a Python process without torch, watched and not, in pairs. Fails above 5 ms in the median.
4. `gcprof rehearse` of two scripts of tests/scripts from end to end, in pairs with `python -c "import torch"`. Fails
   above 4 times that for the ImageNet-like one with `--steps 3`, and 5 times for the nanoGPT-like one.
5. The same of three scripts that need no values, in pairs with values known and not. Fails above 1.1 in the median.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from profiler.core.stats import ratio_of_pairs, step_order
from profiler.scripts.launch import INJECT
from tests.scripts import runs

STEPS, STARTS, WHOLES, WARM_UP = 400, 60, 5, 20
STEP_RATIO, START_SECONDS = 1.02, 0.005
WHOLE_RATIOS = {"imagenet_like": (("--steps", "3"), 4.0), "nanogpt_like": ((), 5.0)}
VALUES = {"imagenet_like": ("--steps", "3"), "nanogpt_like": (), "vae": ()}
VALUES_RATIO = 1.1
WORDS = (sys.executable, "-m", "benchmarks.script_overhead")


def main() -> int:
    if sys.argv[1:]:
        print(json.dumps(paired_steps(sys.argv[1])))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = runs.copied(Path(name))
        failures = [_steps_cost(folder), _start_costs(folder), *(_whole_costs(name, folder) for name in WHOLE_RATIOS)]
        failures += [_values_costs(name, folder) for name in VALUES]
    return int(any(failures))


# ---- a step, in a process of its own


def paired_steps(device: str) -> list[tuple[float, float]]:
    """Return the seconds of pairs of steps: with the watch, and without."""
    import torch
    from torch import nn

    if device == "cpu":
        sys.path.insert(0, str(INJECT))
        vars(torch._C).pop("_cuda_attach_out_of_memory_observer", None)  # asks for a driver
        import gcprof_watch  # type: ignore[import-not-found, unused-ignore]

        gcprof_watch.Watch().begin()
    torch.set_num_threads(1)
    blocks = [nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0) for _ in range(4)]
    model = nn.Sequential(*blocks, nn.Linear(64, 64)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(8, 40, 64, device=device)

    def step() -> float:
        began = time.perf_counter()
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - began

    for _ in range(WARM_UP):
        step()
    switch, pairs = _switch(), []
    for number in range(STEPS):
        seconds = {}
        for is_watched in step_order(number):
            switch(bool(is_watched))
            seconds[is_watched] = step()
        pairs.append((seconds[1], seconds[0]))
    return pairs


def _switch() -> Callable[[bool], None]:
    """Return what takes the watch's hooks away, and puts them back."""
    from torch import autograd
    from torch.nn.modules import module
    from torch.optim import optimizer

    hooks = [getattr(module, name) for name in vars(module) if name.startswith("_global_forward")]
    hooks += [optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks]
    watched, taken = autograd.backward, [{} for _ in hooks]
    plain = inspect.getclosurevars(watched).nonlocals["function"]

    def switch(is_watched: bool) -> None:
        autograd.backward = watched if is_watched else plain
        for hook, entries in zip(hooks, taken, strict=True):
            into, out_of = (hook, entries) if is_watched else (entries, hook)
            into.update(out_of)
            out_of.clear()

    return switch


# ---- what is run, and printed


def _steps_cost(folder: Path) -> bool:
    """Print what the watch costs a step; whether it is too much on the CPU."""
    done = _run((*WORDS, "cpu"), GCPROF_WATCH=str(folder))
    pairs = json.loads(done.stdout)
    ratio, limits = ratio_of_pairs([watched / plain for watched, plain in pairs])
    low, high = limits or (ratio, ratio)
    plain = median(plain for _, plain in pairs)
    print(
        f"step on the CPU, {plain * 1e3:.1f} ms: {ratio:.4f} ({low:.4f} to {high:.4f}) of it with the watch", flush=True
    )
    hollow = (sys.executable, "-m", "profiler", "rehearse", "--device", runs.DEVICE, "--quiet", "--", *WORDS, "cuda")
    pairs = json.loads(_run(hollow).stdout.splitlines()[0])
    more = quantiles([watched - plain for watched, plain in pairs], n=4)
    plain = median(plain for _, plain in pairs)
    text = f"{more[1] * 1e3:.2f} ms (quartiles {more[0] * 1e3:.2f} to {more[2] * 1e3:.2f})"
    print(f"step on a hollow GPU, {plain * 1e3:.1f} ms of host time: {text} more with the watch", flush=True)
    return ratio > STEP_RATIO


def _start_costs(folder: Path) -> bool:
    words = (sys.executable, "-c", "pass")
    variables = {"PYTHONPATH": str(INJECT), "GCPROF_WATCH": str(folder), "GCPROF_LIBRARIES": ""}
    pairs = _pairs(lambda: _seconds(words, **variables), lambda: _seconds(words), STARTS)
    more = median(watched - plain for watched, plain in pairs)
    plain = median(plain for _, plain in pairs)
    print(f"start without torch, {plain * 1e3:.1f} ms: {more * 1e3:.2f} ms more with the watch", flush=True)
    return more > START_SECONDS


def _whole_costs(name: str, folder: Path) -> bool:
    script = runs.TABLE[name]
    if script.missing:
        print(f"{name}: {', '.join(script.missing)} not installed")
        return False
    options, most = WHOLE_RATIOS[name]
    gcprof = (sys.executable, "-m", "profiler", "rehearse", "--device", runs.DEVICE, "--quiet", *options)
    words, plain = (*gcprof, "--", *script.words), (sys.executable, "-c", "import torch")
    pairs = _pairs(lambda: _seconds(words, cwd=folder), lambda: _seconds(plain), WHOLES)
    ratio = median(whole / imported for whole, imported in pairs)
    seconds = median(whole for whole, _ in pairs)
    print(f"{' '.join(options)} {name}, {seconds:.1f} s: {ratio:.2f} times `import torch`".lstrip(), flush=True)
    return ratio > most


def _values_costs(name: str, folder: Path) -> bool:
    script = runs.TABLE[name]
    if script.missing:
        print(f"{name}: {', '.join(script.missing)} not installed")
        return False
    words = (sys.executable, "-m", "profiler", "rehearse", "--device", runs.DEVICE, "--quiet", *VALUES[name], "--")
    known = (*words, *script.words)
    pairs = _pairs(
        lambda: _seconds(known, cwd=folder), lambda: _seconds(known, cwd=folder, GCPROF_VALUES="off"), WHOLES
    )
    ratios = sorted(one / other for one, other in pairs)
    print(
        f"{name} with values known: {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}) of it without",
        flush=True,
    )
    return median(ratios) > VALUES_RATIO


def _pairs(one: Callable[[], float], other: Callable[[], float], count: int) -> list[tuple[float, float]]:
    both, found = (one, other), []
    for number in range(-1, count):  # the first pair fills caches
        seconds = {place: both[place]() for place in step_order(max(number, 0))}
        found.append((seconds[0], seconds[1]))
    return found[1:]


def _seconds(words: tuple[str, ...], *, cwd: Path | None = None, **variables: str) -> float:
    began = time.perf_counter()
    _run(words, cwd=cwd, **variables)
    return time.perf_counter() - began


def _run(words: tuple[str, ...], *, cwd: Path | None = None, **variables: str) -> Any:
    environment = {**runs.environment(), "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(words, cwd=cwd, env=environment, check=True, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
