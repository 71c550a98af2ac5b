"""How long answers take beside `python -c "import torch"`: `just bench-answers`.

Whole commands as users type them, each in turns with that import in the same run. A ratio is the median of those of
the turns, with the smallest and largest; on the clock, and of the processor's time, which other work on the machine
changes less. `run` gives two lines: to the first complete table (every row once), and to its end. Fails where a ratio
on the clock is above its goal; the goals are of 2 quiet cores, and the load is printed. `--turns N` (3) and names of
lines choose.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

IMPORT = (sys.executable, "-c", "import torch")
GCPROF = (sys.executable, "-m", "profiler")
ROOT = Path(__file__).parents[1]
SEVEN = "none,sqrt,all,every,recursive,from-start,selective"  # rows of one model
FURTHER_SECONDS = 0.3  # that a rehearsed row after the first may take
PROGRESS = re.compile(rb"\[ *(\d+)/\d+\]")


class Question(NamedTuple):
    """A command, and the most that it may take, in imports of torch."""

    words: tuple[str, ...]
    goal: float
    num_rows: int | None = None  # of the first table, where that has a goal too
    first_goal: float = 0.0
    is_written: bool = True  # it takes a folder with --output


QUESTIONS = {
    "predict": Question(("predict",), 1.6),
    "rehearse": Question(("rehearse", "mlp", "--strategies", "none"), 1.4),
    "rehearse-7": Question(("rehearse", "mlp", "--strategies", SEVEN), 1.6),
    "explain": Question(("explain", "mnist-cnn"), 1.5, is_written=False),
    "plan": Question(("plan", "transformer", "--device", "h100", "--budget", "60%"), 2.5, is_written=False),
    "run": Question(("run", "--device", "cpu"), 20.0, num_rows=7, first_goal=8.0),
}


class Spent(NamedTuple):
    """Seconds of a process and of its offspring."""

    clock: float
    processor: float
    first_table: float | None = None  # on the clock


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(QUESTIONS)}", default=[])
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    print(f"load before {_load()}", flush=True)
    misses, seconds = 0, dict[str, float]()
    for name in asked.names or QUESTIONS:
        missed, seconds[name] = _ask(name, QUESTIONS[name], turns=asked.turns)
        misses += missed
    if {"rehearse", "rehearse-7"} <= seconds.keys():
        further = (seconds["rehearse-7"] - seconds["rehearse"]) / SEVEN.count(",")
        misses += further > FURTHER_SECONDS
        verdict = "met" if further <= FURTHER_SECONDS else "MISSED"
        print(f"{'a further row':18} {further:.2f} s  at most {FURTHER_SECONDS:g} s  {verdict}")
    print(f"load after {_load()}")
    return int(misses > 0)


def _ask(name: str, question: Question, *, turns: int) -> tuple[int, float]:
    """Print the lines of a command; returns how many missed their goal, and the command's seconds."""
    pairs = [(_spent(IMPORT), _spent((*GCPROF, *question.words), question)) for _ in range(turns)]
    processor = _ratios([(torch.processor, answer.processor) for torch, answer in pairs])
    clock = _ratios([(torch.clock, answer.clock) for torch, answer in pairs])
    lines = [(name, clock, processor, question.goal)]
    if question.num_rows is not None:
        first = [(torch.clock, answer.first_table or answer.clock) for torch, answer in pairs]
        lines.insert(0, (f"{name}, first table", _ratios(first), None, question.first_goal))
    for title, ratios, others, goal in lines:
        busy = f"; of the processor {_text(others)}" if others else ""
        verdict = "met" if median(ratios) <= goal else "MISSED"
        print(f"{title:18} {_text(ratios)}{busy}  at most {goal:g} x  {verdict}", flush=True)
    seconds = median(answer.clock for _, answer in pairs)
    print(f"{'':18} {seconds:.1f} s beside {median(torch.clock for torch, _ in pairs):.1f} s", flush=True)
    return sum(median(ratios) > goal for _, ratios, _, goal in lines), seconds


def _spent(words: Sequence[str], question: Question | None = None) -> Spent:
    """What one process takes, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        more = ("--output", f"{folder}/run") if question and question.is_written else ()
        began = time.monotonic()
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        child = subprocess.Popen(
            [*words, *more], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        first = _first_table(child, began, question.num_rows if question else None)
        _, status, usage = os.wait4(child.pid, 0)
        clock = time.monotonic() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0, f"{' '.join(words)} ended with {child.returncode}"
        return Spent(clock, usage.ru_utime + usage.ru_stime, first)


def _first_table(child: subprocess.Popen[bytes], began: float, num_rows: int | None) -> float | None:
    """Read all that the child tells; seconds until every row was there once, where it has rows."""
    first = None
    assert child.stderr is not None
    for line in child.stderr:
        told = PROGRESS.match(line)
        if told and first is None and int(told[1]) == num_rows:
            first = time.monotonic() - began
    return first


def _ratios(pairs: Sequence[tuple[float, float]]) -> list[float]:
    return [answer / torch for torch, answer in pairs]


def _text(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2f} x ({min(ratios):.2f}..{max(ratios):.2f})"


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"


if __name__ == "__main__":
    sys.exit(main())
