"""What it takes to read a run of 10,000 records: `just bench-readers`.

Two runs: 10,000 strategies of one model, and 100 models with 20 strategies in five rounds. Every command is a process
of its own, start-up included. Prints for `show`, `list` and `export` the median seconds of the processor, which other
work on the machine hardly changes, beside those of the clock. Fails above 2 s of the processor.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from profiler.core.case import Trial, encode
from profiler.core.record import Record
from profiler.runs import store
from tests import examples, make

RECORDS, TIMES, LIMIT_SECONDS = 10_000, 3, 2.0
COMMANDS = (
    ("show",),
    ("show", "--width", "80"),
    ("show", "--json"),
    *(("export", "--to", kind) for kind in ("csv", "json", "md", "latex")),
)


def main() -> int:
    late = 0
    with tempfile.TemporaryDirectory() as name:
        for shape, records in (("strategies", strategies()), ("models", models())):
            write(Path(name) / shape / "run", list(records))
            folder = Path(name) / shape / "run"
            for first, *rest in COMMANDS:
                late += _told(f"{' '.join([first, *rest])}, {shape}", [first, str(folder), *rest])
            late += _told(f"list, {shape}", ["list", "--folder", str(folder.parent)])
    return int(late > 0)


def strategies() -> Iterator[Record]:
    """One model, every record another strategy."""
    chance = random.Random(0)
    for number in range(RECORDS):
        yield make.record("none" if number == 0 else f"segments:k={number}", **_readings(chance))


def models() -> Iterator[Record]:
    """A hundred batch sizes, twenty strategies, five rounds."""
    chance = random.Random(0)
    for number in range(RECORDS):
        batch_size, round_, strategy = number // 100 + 1, number // 20 % 5 + 1, number % 20
        case = make.case(f"segments:k={strategy + 1}" if strategy else "none", batch_size=batch_size)
        yield make.record(case=case, round=round_, **_readings(chance))


def write(folder: Path, records: list[Record]) -> None:
    plan = tuple(Trial(case=record.case, round=record.round) for record in records)
    store.create(folder, plan=plan, command="gcprof run", environment=examples.ENVIRONMENT, sources={})
    (folder / "trials.jsonl").write_bytes(b"".join(encode(record) + b"\n" for record in records))


def _readings(chance: random.Random) -> dict[str, object]:
    return {
        "peak": chance.randrange(50 * make.MIB, 100 * make.MIB),
        "seconds": tuple(chance.uniform(0.1, 0.2) for _ in range(5)),
    }


def _told(name: str, words: list[str]) -> bool:
    """Print what a command takes; whether that is too long."""
    processor, clock = (median(seconds) for seconds in zip(*(_seconds(words) for _ in range(TIMES)), strict=True))
    print(f"{name:36} processor {processor:5.2f} s  clock {clock:5.2f} s", flush=True)
    return processor > LIMIT_SECONDS


def _seconds(words: list[str]) -> tuple[float, float]:
    """Of the processor, and of the clock."""
    began, used = time.monotonic(), _used()
    command = [sys.executable, "-m", "profiler", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return _used() - used, time.monotonic() - began


def _used() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


if __name__ == "__main__":
    sys.exit(main())
