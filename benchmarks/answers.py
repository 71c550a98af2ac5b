"""How long answers take beside an import: `just bench-answers`; what a trial costs: `just bench-startup`.

Whole commands as users type them, in turns with `python -c "import torch"` in the same run (`help` with typer's, and
`values` with the same command where no values are known). A ratio is the median of those of the turns, with the
smallest and largest; on the clock, and of the processor's time, which other work on the machine changes less. `run`
gives two lines: to the first complete table (every row once), and to its end. `trial` is the time from the request to
the worker's first line, and that of a whole tiny trial with all three passes, over a new interpreter's imports, in the
quickest of three engines, since what others do only adds to them. Fails where a ratio on the clock is above its goal;
the goals are of 2 quiet cores, and the load is printed. `--turns N` and names of lines choose.
"""

import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import GCPROF, ROOT, Row, Spent, parser, spent, verdict
from profiler.core.case import Trial
from profiler.core.server_process import PRELOAD
from profiler.engines.local import Local
from tests.scripts import runs

IMPORT = (sys.executable, "-c", "import torch")
SEVEN = "none,sqrt,all,every,recursive,from-start,selective"  # rows of one model
FURTHER_SECONDS = 0.3  # that a rehearsed row after the first may take
PROGRESS = re.compile(rb"\[ *(\d+)/\d+\]")
WATCHED = ("rehearse", "--device", runs.DEVICE, "--quiet")
CLASSIFIER = (*WATCHED, "--steps", "3", "--", "python", "imagenet_like.py")
NANOGPT = (*WATCHED, "--", "python", "nanogpt_like.py")
TRIALS, START, WHOLE = 30, 1 / 40, 1 / 8  # the most that a trial may take, in imports of what it preloads


class Question(NamedTuple):
    """A command, and the most that it may take, over what it is held to."""

    words: tuple[str, ...]
    goal: float
    beside: tuple[str, ...] = IMPORT
    without: str = ""  # a variable that is off where the same command is run beside it
    num_rows: int | None = None  # of the first table, where that has a goal too
    first_goal: float = 0.0
    turns: int = 3


QUESTIONS = {
    "help": Question(("--help",), 1.3, beside=(sys.executable, "-c", "import typer"), turns=10),
    "predict": Question(("predict",), 1.6),
    "rehearse": Question(("rehearse", "mlp", "--strategies", "none", "-o", "run"), 1.4),
    "rehearse-7": Question(("rehearse", "mlp", "--strategies", SEVEN, "-o", "run"), 1.6),
    "explain": Question(("explain", "mnist-cnn"), 1.5),
    "plan": Question(("plan", "transformer", "--device", "h100", "--budget", "60%"), 2.5),
    "run": Question(("run", "--device", "cpu", "-o", "run"), 20.0, num_rows=7, first_goal=8.0),
    "classifier": Question(CLASSIFIER, 4.0, turns=5),
    "nanogpt": Question(NANOGPT, 5.0, turns=5),
    "values": Question(NANOGPT, 1.1, beside=(*GCPROF, *NANOGPT), without="GCPROF_VALUES", turns=5),
}


def main() -> int:
    arguments = parser(__doc__, f"of trial, {', '.join(QUESTIONS)}")
    arguments.add_argument("--turns", type=int)
    asked = arguments.parse_args()
    print(f"load before {_load()}", flush=True)
    names = asked.names or ["trial", *QUESTIONS]
    misses, seconds = _trial() if "trial" in names else 0, dict[str, float]()
    for name in names:
        if question := QUESTIONS.get(name):
            missed, seconds[name] = _ask(name, question, turns=asked.turns or question.turns)
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
    taken = [_answered(question) for _ in range(turns)]
    processor = [answer.processor / beside.processor for beside, answer, _ in taken]
    lines = [(name, [answer.clock / beside.clock for beside, answer, _ in taken], processor, question.goal)]
    if question.num_rows is not None:
        first = [table / beside.clock for beside, _, table in taken]
        lines.insert(0, (f"{name}, first table", first, [], question.first_goal))
    missed = sum(_line(*line) for line in lines)
    seconds = median(answer.clock for _, answer, _ in taken)
    print(f"{'':18} {seconds:.1f} s beside {median(beside.clock for beside, *_ in taken):.1f} s", flush=True)
    return missed, seconds


def _line(title: str, ratios: Sequence[float], processor: Sequence[float], goal: float) -> bool:
    """Print a line, and return whether it misses its goal."""
    busy = f"; of the processor {_text(processor)}" if processor else ""
    met = verdict(median(ratios) <= goal)
    print(f"{title:18} {_text(ratios)}{busy}  at most {goal:.3g} x  {met}", flush=True)
    return median(ratios) > goal


def _answered(question: Question) -> tuple[Spent, Spent, float]:
    """Return what is beside a command, what it takes in a folder of its own, and the seconds until its first table."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if "--" in question.words:
            runs.copied(Path(folder))
            environment = runs.environment()
        off = {question.without: "off"} if question.without else {}
        beside = spent(question.beside, cwd=folder, env=environment | off)
        began, first, (reading, writing) = time.monotonic(), list[float](), os.pipe()

        def read() -> None:
            with open(reading, "rb") as lines:
                for line in lines:
                    told = PROGRESS.match(line)
                    if told and int(told[1]) == question.num_rows:
                        first.append(time.monotonic() - began)

        thread = threading.Thread(target=read)
        thread.start()
        answer = spent((*GCPROF, *question.words), cwd=folder, env=environment, stderr=writing)
        os.close(writing)
        thread.join()
        return beside, answer, (first or [answer.clock])[0]


def _trial() -> int:
    """Print what a tiny trial that verifies, reads memory and takes time costs; returns how many goals are missed."""
    imports = median(spent((sys.executable, "-c", f"import {', '.join(PRELOAD)}")).clock for _ in range(3))
    starts, wholes = min((_trials() for _ in range(3)), key=lambda tried: median(tried[1]))
    missed = _line("trial, its start", [seconds / imports for seconds in starts], [], START)
    return missed + _line("trial, whole", [seconds / imports for seconds in wholes], [], WHOLE)


def _trials() -> tuple[list[float], list[float]]:
    """Return the seconds to the first line and of the whole of tiny trials, after a first one."""
    none = Row(model="mlp", batch_size=64).case("cpu", samples=5, verify="auto")
    starts, wholes = [], []
    with Local() as engine:
        baseline = next(engine.run([Trial(case=none)]))
        for _ in range(TRIALS):
            began = time.monotonic()
            record = next(engine.run([Trial(case=none, digests=baseline.equality.digests)]))
            wholes.append(time.monotonic() - began)
            starts.append(record.stage_seconds["start"])
            assert record.equality.gradients_equal, record.detail
            assert record.readings.peak_bytes
            assert record.readings.step_seconds
    return starts, wholes


def _text(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.3g} x ({min(ratios):.3g}..{max(ratios):.3g})"


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"


if __name__ == "__main__":
    sys.exit(main())
