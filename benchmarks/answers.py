"""How long answers take beside `python -c "import torch"`: `just bench-answers`.

Whole commands as users type them, each in turns with that import in the same run. A ratio is the median of those of
the turns, with the smallest and largest; on the clock, and of the processor's time, which other work on the machine
changes less. `run` gives two lines: to the first complete table (every row once), and to its end. Fails where a ratio
on the clock is above its goal; the goals are of 2 quiet cores, and the load is printed. `--turns N` (3) and names of
lines choose.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from benchmarks import GCPROF, ROOT, Spent, parser, spent, verdict

IMPORT = (sys.executable, "-c", "import torch")
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
    "predict": Question(("predict",), 1.6, is_written=False),
    "rehearse": Question(("rehearse", "mlp", "--strategies", "none"), 1.4),
    "rehearse-7": Question(("rehearse", "mlp", "--strategies", SEVEN), 1.6),
    "explain": Question(("explain", "mnist-cnn"), 1.5, is_written=False),
    "plan": Question(("plan", "transformer", "--device", "h100", "--budget", "60%"), 2.5, is_written=False),
    "run": Question(("run", "--device", "cpu"), 20.0, num_rows=7, first_goal=8.0),
}


def main() -> int:
    arguments = parser(__doc__, f"of {', '.join(QUESTIONS)}")
    arguments.add_argument("--turns", type=int, default=3)
    asked = arguments.parse_args()
    print(f"load before {_load()}", flush=True)
    misses, seconds = 0, dict[str, float]()
    for name in asked.names or QUESTIONS:
        missed, seconds[name] = _ask(name, QUESTIONS[name], turns=asked.turns)
        misses += missed
    if {"rehearse", "rehearse-7"} <= seconds.keys():
        further = (seconds["rehearse-7"] - seconds["rehearse"]) / SEVEN.count(",")
        misses += further > FURTHER_SECONDS
        met = verdict(further <= FURTHER_SECONDS)
        print(f"{'a further row':18} {further:.2f} s  at most {FURTHER_SECONDS:g} s  {met}")
    print(f"load after {_load()}")
    return int(misses > 0)


def _ask(name: str, question: Question, *, turns: int) -> tuple[int, float]:
    """Print the lines of a command; returns how many missed their goal, and the command's seconds."""
    pairs = [(spent(IMPORT), *_answered(question)) for _ in range(turns)]
    processor = [answer.processor / torch.processor for torch, answer, _ in pairs]
    lines = [(name, [answer.clock / torch.clock for torch, answer, _ in pairs], processor, question.goal)]
    if question.num_rows is not None:
        first = [table / torch.clock for torch, _, table in pairs]
        lines.insert(0, (f"{name}, first table", first, [], question.first_goal))
    for title, ratios, others, goal in lines:
        busy = f"; of the processor {_text(others)}" if others else ""
        met = verdict(median(ratios) <= goal)
        print(f"{title:18} {_text(ratios)}{busy}  at most {goal:g} x  {met}", flush=True)
    seconds = median(answer.clock for _, answer, _ in pairs)
    print(f"{'':18} {seconds:.1f} s beside {median(torch.clock for torch, *_ in pairs):.1f} s", flush=True)
    return sum(median(ratios) > goal for _, ratios, _, goal in lines), seconds


def _answered(question: Question) -> tuple[Spent, float]:
    """Return what a command takes in a folder of its own, and the seconds until every row was there once."""
    with tempfile.TemporaryDirectory() as folder:
        more = ("--output", f"{folder}/run") if question.is_written else ()
        began, first, (reading, writing) = time.monotonic(), list[float](), os.pipe()

        def read() -> None:
            with open(reading, "rb") as lines:
                for line in lines:
                    told = PROGRESS.match(line)
                    if told and int(told[1]) == question.num_rows:
                        first.append(time.monotonic() - began)

        thread = threading.Thread(target=read)
        thread.start()
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        answer = spent((*GCPROF, *question.words, *more), cwd=folder, env=environment, stderr=writing)
        os.close(writing)
        thread.join()
        return answer, (first or [answer.clock])[0]


def _text(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2f} x ({min(ratios):.2f}..{max(ratios):.2f})"


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"


if __name__ == "__main__":
    sys.exit(main())
