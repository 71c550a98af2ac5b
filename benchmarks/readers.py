"""What it takes to read a run of 10,000 records: `just bench-readers`.

Two runs: 10,000 strategies of one model, and 100 models with 20 strategies in five rounds. Every command is a process
of its own, start-up included. Prints for `show`, `list` and `export` the median seconds of the processor, which other
work on the machine hardly changes, beside those of the clock. Fails above 2 s of the processor, 1.5 s for CSV. Then,
once each, `show` of 100,000 records, above 5 s or 400 MiB, and `compare` of 5,000 rows in one group and in groups of
20, above 5 s.
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

RECORDS, TIMES, LIMIT_SECONDS, CSV_SECONDS = 10_000, 3, 2.0, 1.5
MANY, MANY_SECONDS, MANY_BYTES = 100_000, 5.0, 400 << 20
COMPARED, COMPARED_SECONDS = 5_000, 5.0
COMMAND = """
import sys
from profiler.cli import main
try:
    main()
finally:
    status = open("/proc/self/status", encoding="ascii").read()
    print(status.partition("VmHWM:")[2].split()[0], file=sys.stderr)  # of this process: ru_maxrss has its parent's too
"""
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
                seconds = CSV_SECONDS if "csv" in rest else LIMIT_SECONDS
                late += _told(f"{' '.join([first, *rest])}, {shape}", [first, str(folder), *rest], seconds=seconds)
            late += _told(f"list, {shape}", ["list", "--folder", str(folder.parent)])
        for shape, records in (("strategies", strategies(COMPARED)), ("models", models(COMPARED))):
            write(Path(name) / f"compared-{shape}", list(records))
            words = ["compare", *[str(Path(name) / f"compared-{shape}")] * 2]
            late += _told(f"compare of {COMPARED:,}, {shape}", words, seconds=COMPARED_SECONDS, times=1)
        write(Path(name) / "many", list(strategies(MANY)))
        many = ["show", str(Path(name) / "many")]
        late += _told(f"show of {MANY:,}", many, seconds=MANY_SECONDS, most_bytes=MANY_BYTES, times=1)
    return int(late > 0)


def strategies(count: int = RECORDS) -> Iterator[Record]:
    """One model, every record another strategy."""
    chance = random.Random(0)
    for number in range(count):
        yield make.record("none" if number == 0 else f"segments:k={number}", **_readings(chance))


def models(count: int = RECORDS) -> Iterator[Record]:
    """Batch sizes with twenty strategies and five rounds each; of 10,000 records a hundred."""
    chance = random.Random(0)
    for number in range(count):
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


def _told(
    name: str,
    words: list[str],
    *,
    seconds: float = LIMIT_SECONDS,
    most_bytes: int | None = None,
    times: int = TIMES,
) -> bool:
    """Print what a command takes; whether that is too much."""
    taken = [_taken(words) for _ in range(times)]
    processor, clock, nbytes = (median(values) for values in zip(*taken, strict=True))
    print(f"{name:36} processor {processor:5.2f} s  clock {clock:5.2f} s  {nbytes / 2**20:4.0f} MiB", flush=True)
    return processor > seconds or (most_bytes is not None and nbytes > most_bytes)


def _taken(words: list[str]) -> tuple[float, float, float]:
    """Seconds of the processor and of the clock, and the most bytes that the command's own process held."""
    began, used = time.monotonic(), _used()
    command = [sys.executable, "-c", COMMAND, *words]
    done = subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return _used() - used, time.monotonic() - began, int(done.stderr.split()[-1]) * 1024


def _used() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


if __name__ == "__main__":
    sys.exit(main())
