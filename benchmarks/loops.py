"""Ratios that gcprof measures, beside loops of plain PyTorch, each in a process of its own: `just bench-loops`.

A loop knows nothing of gcprof: it builds the same model, calls torch.utils.checkpoint itself (`benchmarks.bare_loop`),
runs one strategy alone and tells the median of its steps. Loops of `none` and of the strategy take turns, so that drift
meets both; a ratio is that of two neighbours, and theirs is the median with the smallest and largest. Loops run as
glibc is, and again with what it frees kept in the process, as gcprof has it. Fails where a ratio of gcprof is off those
by more than 3 points, and the intervals do not meet; and where its step without checkpoints is more than 5 % beyond
those of the loops, so that measuring would slow what is measured. Writes docs/tables/loops.md with -o.
"""

import csv
import os
import tempfile
import timeit
from statistics import median

from benchmarks import GCPROF, ROOT, called, parser, spent, table, write

STEPS, WARMUP, TURNS = 12, 4, 5
POINTS, SLOWED = 0.03, 0.05
KEPT = {"MALLOC_TRIM_THRESHOLD_": "-1", "MALLOC_MMAP_MAX_": "0"}
CNN, GPT = ("mnist-cnn:channels=32,layers=10", "32"), ("transformer:layers=6,width=128", "8")  # with their batches
LOOPS = ((*CNN, "segments:k=4"), (*CNN, "segments:k=16"), (*GPT, "all"))
HEAD = "model, strategy | gcprof: | loops, freed memory kept: | loops, as glibc is: | gcprof's plain step:"


def loop(model: str, batch_size: str, strategy: str) -> float:
    """The median seconds of a step of plain PyTorch."""
    import torch

    from benchmarks import bare_loop

    torch.manual_seed(0)
    words = {"model": model, "strategy": strategy, "precision": "fp32", "optimizer": "sgd"}
    *_, step = bare_loop.prepared({**words, "batch_size": int(batch_size)}, "cpu")
    return median(timeit.repeat(step, repeat=WARMUP + STEPS, number=1)[WARMUP:])


def turns(words: tuple[str, ...], environment: dict[str, str]) -> tuple[list[float], list[float]]:
    """Of loops that take turns, the ratios of those with checkpoints, and the seconds of those without."""
    *model, strategy = words
    ratios, plain, env = [], [], os.environ | environment
    for turn in range(TURNS):
        seconds = {
            name: float(spent(called("benchmarks.loops", "loop", *model, name), cwd=ROOT, env=env).output)
            for name in ("none", strategy)[:: 1 if turn % 2 else -1]
        }
        ratios.append(seconds[strategy] / seconds["none"])
        plain.append(seconds["none"])
    return sorted(ratios), sorted(plain)


def measured(model: str, batch_size: str, strategy: str) -> tuple[float, float, float, float]:
    """The step without the strategy, the ratio and its interval, as `gcprof run` says."""
    with tempfile.TemporaryDirectory() as folder:
        run = f"{folder}/run"
        how = ("--batch-size", batch_size, "--strategies", f"none,{strategy}", "--device", "cpu")
        spent((*GCPROF, "run", model, *how, "--output", run, "--quiet"), cwd=ROOT)
        text = spent((*GCPROF, "export", run, "--to", "csv"), cwd=ROOT).output.decode()
    none, *_, line = csv.DictReader(text.splitlines())
    ratio, low, high = (float(line[name]) for name in ("time_ratio", "time_ratio_least", "time_ratio_most"))
    return float(none["step_seconds"]), ratio, low, high


def main() -> int:
    asked = parser(__doc__).parse_args()
    rows, missed = [], False
    for words in LOOPS:
        (kept, plain), (as_it_is, _) = turns(words, KEPT), turns(words, {})
        seconds, ratio, low, high = measured(*words)
        missed |= abs(ratio - median(kept)) > POINTS and not (low <= kept[-1] and kept[0] <= high)
        missed |= not plain[0] / (1 + SLOWED) <= seconds <= plain[-1] * (1 + SLOWED)
        loops = [_text(median(one), one[0], one[-1]) for one in (kept, as_it_is)]
        slowed = f"{seconds / median(plain) - 1:+.1%}"
        rows.append((f"`{words[0]}`, `{words[-1]}`", _text(ratio, low, high), *loops, slowed))
        print(*rows[-1], sep=" | ", flush=True)
    write(asked.output, "loops", table(HEAD, rows))
    return int(missed)


def _text(ratio: float, low: float, high: float) -> str:
    return f"{ratio - 1:+.1%} ({low - 1:+.1%}..{high - 1:+.1%})"
