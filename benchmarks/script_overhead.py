"""What the watch costs a training script: `just bench-script-overhead`; on quiet cores.

1. A step of about 10 ms on the CPU, of four transformer blocks, in pairs of one process: with the watch's hooks, and
   with none. Fails above 2 %.
2. The same step on a hollow GPU, where the watch also reads and resets the allocator's counters and writes its lines:
   the difference in milliseconds, which a real GPU's host would pay too. Without a bound.
3. Whole commands in pairs, by the median ratio: `gcprof rehearse` of two scripts of tests/scripts beside
   `python -c "import torch"`, at most 4 and 5; and beside itself where no values are known, at most 1.1.
"""

from __future__ import annotations

import inspect
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

from benchmarks import GCPROF, Spent, spent
from profiler.core.stats import ratio_of_pairs, step_order
from profiler.scripts.launch import INJECT
from tests.scripts import runs

STEPS, WHOLES, WARM_UP, STEP_RATIO, VALUES_RATIO = 400, 5, 20, 1.02, 1.1
SCRIPTS = {"imagenet_like": (("--steps", "3"), 4.0), "nanogpt_like": ((), 5.0)}  # options, and the most
WORDS = (sys.executable, "-m", "benchmarks.script_overhead")
REHEARSE = (*GCPROF, "rehearse", "--device", runs.DEVICE, "--quiet")


def main() -> int:
    if sys.argv[1:]:
        print(json.dumps(paired_steps(sys.argv[1])))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = runs.copied(Path(name))
        failed = _steps_cost(folder)
        for script in SCRIPTS:
            failed |= _whole_costs(script, folder)
    return int(failed)


def paired_steps(device: str) -> list[tuple[float, float]]:
    """Return the seconds of pairs of steps: with the watch, and without. In a process of its own."""
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
    switch = _switch()

    def watched() -> float:
        switch(True)
        return step()

    def plain() -> float:
        switch(False)
        return step()

    return _pairs(watched, plain, STEPS)


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


def _steps_cost(folder: Path) -> bool:
    """Print what the watch costs a step; whether it is too much on the CPU."""
    pairs = json.loads(_run((*WORDS, "cpu"), GCPROF_WATCH=str(folder)).output)
    ratio, limits = ratio_of_pairs([watched / plain for watched, plain in pairs])
    low, high = limits or (ratio, ratio)
    plain = median(plain for _, plain in pairs) * 1e3
    print(f"step on the CPU, {plain:.1f} ms: {ratio:.4f} ({low:.4f} to {high:.4f}) of it with the watch", flush=True)
    pairs = json.loads(_run((*REHEARSE, "--", *WORDS, "cuda")).output.splitlines()[0])
    low, more, high = (1e3 * value for value in quantiles([watched - plain for watched, plain in pairs], n=4))
    plain = median(plain for _, plain in pairs) * 1e3
    print(f"step on a hollow GPU, {plain:.1f} ms of the host: {more:.2f} ms ({low:.2f} to {high:.2f}) more", flush=True)
    return ratio > STEP_RATIO


def _whole_costs(name: str, folder: Path) -> bool:
    """Print what a whole rehearsal takes; whether that is too much."""
    script, (options, most) = runs.TABLE[name], SCRIPTS[name]
    if script.missing:
        print(f"{name}: {', '.join(script.missing)} not installed")
        return False
    words, importing = (*REHEARSE, *options, "--", *script.words), (sys.executable, "-c", "import torch")
    pairs = _pairs(lambda: _seconds(words, folder), lambda: _seconds(importing, folder), WHOLES)
    whole = median(one / other for one, other in pairs)
    pairs = _pairs(lambda: _seconds(words, folder), lambda: _seconds(words, folder, GCPROF_VALUES="off"), WHOLES)
    known = median(one / other for one, other in pairs)
    print(f"{name}: {whole:.2f} times `import torch`; {known:.3f} of it without values", flush=True)
    return whole > most or known > VALUES_RATIO


def _pairs(one: Callable[[], float], other: Callable[[], float], count: int) -> list[tuple[float, float]]:
    both, found = (one, other), []
    for number in range(-1, count):  # the first pair fills caches
        seconds = {place: both[place]() for place in step_order(max(number, 0))}
        found.append((seconds[0], seconds[1]))
    return found[1:]


def _seconds(words: tuple[str, ...], cwd: Path, **variables: str) -> float:
    return _run(words, cwd=cwd, **variables).clock


def _run(words: tuple[str, ...], *, cwd: Path | None = None, **variables: str) -> Spent:
    return spent(words, cwd=cwd, env={**runs.environment(), "OMP_NUM_THREADS": "1", **variables})


if __name__ == "__main__":
    sys.exit(main())
