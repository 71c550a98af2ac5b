"""How long answers take beside an import: `just bench-answers`; what a trial costs: `just bench-startup`.

Whole commands as users type them, in turns with `python -c "import torch"` in the same run (`help` with typer's, and
`values` with the same command where no values are known). A ratio is the median of those of the turns, with the
smallest and largest; on the clock, and of the processor's time, which other work on the machine changes less. `run`
gives two lines: to the first complete table (every row once), and to its end. `trial` is the time from the request to
the worker's first line, and that of a whole tiny trial with all three passes, over a new interpreter's imports, in the
quickest of three engines, since what others do only adds to them. Fails where a ratio on the clock is above its goal;
the goals are of 2 quiet cores, and the load is printed. Names of lines choose.
"""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import GCPROF, ROOT, Row, is_missed, parser, spent
from profiler.core.case import Trial
from profiler.core.server_process import PRELOAD
from profiler.engines.local import Local
from tests.scripts import runs

SEVEN = "none,sqrt,all,every,recursive,from-start,selective"  # rows of one model
FIRST_TABLE, NUM_ROWS = 8.0, 7  # of `run`, which prints a line for each row
FURTHER_SECONDS = 0.3  # that a rehearsed row after the first may take
WATCHED = ("rehearse", "--device", runs.DEVICE, "--quiet")
CLASSIFIER = (*WATCHED, "--steps", "3", "--", "python", "imagenet_like.py")
NANOGPT = (*WATCHED, "--", "python", "nanogpt_like.py")
TRIALS, START, WHOLE = 30, 1 / 40, 1 / 8  # the most that a trial may take, in imports of what it preloads


class Question(NamedTuple):
    """A command, and the most that it may take, over what it is held to."""

    words: tuple[str, ...]
    goal: float
    beside: tuple[str, ...] = (sys.executable, "-c", "import torch")
    turns: int = 3


QUESTIONS = {
    "help": Question(("--help",), 1.3, beside=(sys.executable, "-c", "import typer"), turns=10),
    "predict": Question(("predict",), 1.6),
    "rehearse": Question(("rehearse", "mlp", "--strategies", "none", "-o", "run"), 1.4),
    "rehearse-7": Question(("rehearse", "mlp", "--strategies", SEVEN, "-o", "run"), 1.6),
    "explain": Question(("explain", "mnist-cnn"), 1.5),
    "plan": Question(("plan", "transformer", "--device", "h100", "--budget", "60%"), 2.5),
    "run": Question(("run", "--device", "cpu", "-o", "run"), 20.0),
    "classifier": Question(CLASSIFIER, 4.0, turns=5),
    "nanogpt": Question(NANOGPT, 5.0, turns=5),
    "values": Question(NANOGPT, 1.1, beside=("env", "GCPROF_VALUES=off", *GCPROF, *NANOGPT), turns=5),
}


def main() -> int:
    asked = parser(__doc__, f"of trial, {', '.join(QUESTIONS)}").parse_args()
    print(f"load before {_load()}", flush=True)
    names = asked.names or ["trial", *QUESTIONS]
    misses, seconds = _trial() if "trial" in names else 0, dict[str, float]()
    for name in names:
        if question := QUESTIONS.get(name):
            missed, seconds[name] = _ask(name, question)
            misses += missed
    if {"rehearse", "rehearse-7"} <= seconds.keys():
        further = (seconds["rehearse-7"] - seconds["rehearse"]) / SEVEN.count(",")
        misses += is_missed("a further row, seconds", further, FURTHER_SECONDS)
    print(f"load after {_load()}")
    return int(misses > 0)


def _ask(name: str, question: Question) -> tuple[int, float]:
    """Print the lines of a command; return how many missed their goal, and the command's seconds."""
    clock, processor, seconds, tables = [], [], [], []
    for _ in range(question.turns):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            if "--" in question.words:
                runs.copied(Path(folder))
                environment = runs.environment()
            beside = spent(question.beside, cwd=folder, env=environment)
            began, (reading, writing) = time.monotonic(), os.pipe()
            with ThreadPoolExecutor() as pool, open(writing, "wb") as lines:
                first = pool.submit(_first_table, reading)
                answer = spent((*GCPROF, *question.words), cwd=folder, env=environment, stderr=lines)
                lines.close()
                tables.append((first.result() - began) / beside.clock)
        clock.append(answer.clock / beside.clock)
        processor.append(answer.processor / beside.processor)
        seconds.append(answer.clock)
    more = f"; of the processor {median(processor):.3g} x; {median(seconds):.1f} s"
    is_late = name == "run" and _is_missed("run, its first table", tables, FIRST_TABLE)
    return _is_missed(name, clock, question.goal, more) + is_late, median(seconds)


def _first_table(descriptor: int) -> float:
    """Read all that a command says; return when it had said that each row was there once, on the monotonic clock."""
    with open(descriptor, "rb") as lines:
        times = [time.monotonic() for line in lines if line.lstrip(b"[ ").startswith(f"{NUM_ROWS}/".encode())]
    return min(times, default=inf)


def _is_missed(title: str, ratios: Sequence[float], goal: float, more: str = "") -> bool:
    return is_missed(title, median(ratios), goal, f"x ({min(ratios):.3g}..{max(ratios):.3g}){more}")


def _trial() -> int:
    """Print what a tiny trial that verifies, reads memory and takes time costs; returns how many goals are missed."""
    imports = median(spent((sys.executable, "-c", f"import {', '.join(PRELOAD)}")).clock for _ in range(3))
    none = Row(model="mlp", batch_size=64).case("cpu", samples=5, verify="auto")
    tried = []
    for _ in range(3):
        starts, wholes = [], []  # to the first line, and of the whole trial, in imports
        with Local() as engine:
            baseline = next(engine.run([Trial(case=none)]))
            for _ in range(TRIALS):
                began = time.monotonic()
                record = next(engine.run([Trial(case=none, digests=baseline.equality.digests)]))
                wholes.append((time.monotonic() - began) / imports)
                starts.append(record.stage_seconds["start"] / imports)
                assert record.equality.gradients_equal, record.detail
                assert record.readings.peak_bytes
                assert record.readings.step_seconds
        tried.append((starts, wholes))
    starts, wholes = min(tried, key=lambda each: median(each[1]))
    return _is_missed("trial, its start", starts, START) + _is_missed("trial, whole", wholes, WHOLE)


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
