"""Ratios that gcprof measures, beside loops of plain PyTorch, each in a process of its own: `just bench-loops`.

A loop knows nothing of gcprof: it builds the same model, calls torch.utils.checkpoint itself, runs one strategy alone
and tells the median of its steps. Loops of `none` and of the strategy take turns, so that drift meets both; a ratio is
that of two neighbours, and theirs is the median with the smallest and largest. Loops run as glibc is, and again with
what it frees kept in the process, as gcprof has it. Fails where a ratio of gcprof is off those by more than 3 points,
and the intervals do not meet; and where its step without checkpoints is more than 5 % beyond those of the loops, so
that measuring would slow what is measured. Writes docs/tables/loops.md with -o.
"""

from __future__ import annotations

import csv
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from benchmarks import GCPROF, ROOT, parser, spent, table, write

STEPS, WARMUP, TURNS = 12, 4, 5
POINTS, SLOWED = 0.03, 0.05
KEPT = {"MALLOC_TRIM_THRESHOLD_": "-1", "MALLOC_MMAP_MAX_": "0"}


class Layer(nn.Module):
    """A convolution and what follows it, which gcprof and the loops both take as one block."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, 32, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.convolution(x))


class Cnn(nn.Sequential):
    """Thirty convolutions on small pictures, a chain for checkpoint_sequential."""

    def __init__(self) -> None:
        super().__init__(*(Layer(32 if number else 1) for number in range(30)))


class Gpt(nn.Module):
    """Six blocks of a transformer, each for a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True, norm_first=True) for _ in range(6)
        )
        self.head = nn.Linear(128, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        result: torch.Tensor = self.head(x)
        return result


def cnn() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor], Any]:
    """For gcprof, as the next: the model, a batch and the loss."""
    torch.manual_seed(0)
    return Cnn(), (torch.randn(32, 1, 28, 28), torch.randn(32, 32, 28, 28)), F.mse_loss


def gpt() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor], Any]:
    torch.manual_seed(0)
    return Gpt(), (torch.randn(8, 128, 128), torch.randn(8, 128, 256)), F.mse_loss


def _by_segments(model: nn.Module, x: torch.Tensor, k: int) -> torch.Tensor:
    result: torch.Tensor = checkpoint_sequential(model, k, x, use_reentrant=False)
    return result


def _by_blocks(model: Any, x: torch.Tensor) -> torch.Tensor:
    for layer in model.layers:
        x = checkpoint(layer, x, use_reentrant=False)
    result: torch.Tensor = model.head(x)
    return result


class Loop(NamedTuple):
    """A model, gcprof's word for a strategy, and the same forward by PyTorch's own calls."""

    model: str
    strategy: str
    split: str  # of the blocks, as gcprof tells it: the same work as the loop's
    forward: Any


LOOPS = {
    "cnn-4": Loop("cnn", "segments:k=4", "3x7+9", lambda model, x: _by_segments(model, x, 4)),
    "cnn-16": Loop("cnn", "segments:k=16", "15x1+15", lambda model, x: _by_segments(model, x, 16)),
    "gpt-all": Loop("gpt", "all", "6 of 6", _by_blocks),
}


def loop(name: str, plain: bool) -> float:
    """The median seconds of a step of plain PyTorch."""
    model, (x, y), loss = {"cnn": cnn, "gpt": gpt}[LOOPS[name].model]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    forward = (lambda model, x: model(x)) if plain else LOOPS[name].forward
    seconds = []
    for _ in range(WARMUP + STEPS):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss(forward(model, x), y).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    return median(seconds[WARMUP:])


def turns(name: str, environment: dict[str, str]) -> tuple[list[float], list[float]]:
    """Of loops that take turns, the ratios of those with checkpoints, and the seconds of those without."""

    def run(kind: str) -> float:
        words = [sys.executable, "-m", "benchmarks.loops", "--loop", name, "--kind", kind]
        return float(spent(words, cwd=ROOT, env={**os.environ, **environment}).output)

    ratios, plain = [], []
    for turn in range(TURNS):
        kinds = ("plain", "own") if turn % 2 else ("own", "plain")
        seconds = {kind: run(kind) for kind in kinds}
        ratios.append(seconds["own"] / seconds["plain"])
        plain.append(seconds["plain"])
    return sorted(ratios), sorted(plain)


class Measured(NamedTuple):
    """What `gcprof run` says of a model and a strategy: the step without it, the ratio and its interval."""

    plain_seconds: float
    ratio: float
    low: float
    high: float


def measured(name: str) -> Measured:
    asked = LOOPS[name]
    with tempfile.TemporaryDirectory() as folder:
        where: dict[str, Any] = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
        words = (*GCPROF, "run", f"{__file__}:{asked.model}", "--device", "cpu")
        spent([*words, "--strategies", f"none,{asked.strategy}", "--output", f"{folder}/run", "--quiet"], **where)
        text = spent((*GCPROF, "export", f"{folder}/run", "--to", "csv"), **where).output.decode()
    none, *_, line = csv.DictReader(text.splitlines())
    assert line["split"] == asked.split, f"gcprof split the blocks into {line['split']}"
    values = none["step_seconds"], line["time_ratio"], line["time_ratio_least"], line["time_ratio_most"]
    return Measured(*map(float, values))


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--loop", choices=LOOPS)
    arguments.add_argument("--kind", choices=("plain", "own"))
    asked = arguments.parse_args()
    if asked.loop:
        print(loop(asked.loop, asked.kind == "plain"))
        return 0
    rows, missed = [], False
    for name, one in LOOPS.items():
        (kept, plain), (as_it_is, _) = turns(name, KEPT), turns(name, {})
        own = measured(name)
        missed |= abs(own.ratio - median(kept)) > POINTS and not (own.low <= kept[-1] and kept[0] <= own.high)
        missed |= not plain[0] / (1 + SLOWED) <= own.plain_seconds <= plain[-1] * (1 + SLOWED)
        gcprof = f"{own.ratio - 1:+.1%} ({own.low - 1:+.1%}..{own.high - 1:+.1%})"
        slowed = f"{own.plain_seconds / median(plain) - 1:+.1%}"
        rows.append((f"{one.model}, `{one.strategy}`", gcprof, _text(kept), _text(as_it_is), slowed))
        print(*rows[-1], sep=" | ", flush=True)
    head = "model, strategy | gcprof: | loops, freed memory kept: | loops, as glibc is: | gcprof's plain step:"
    write(asked.output, "loops", table(head, rows))
    return int(missed)


def _text(found: Sequence[float]) -> str:
    return f"{median(found) - 1:+.1%} ({found[0] - 1:+.1%}..{found[-1] - 1:+.1%})"


if __name__ == "__main__":
    sys.exit(main())
