"""What it takes to read a run of 10,000 records: `just bench-readers`.

Two runs: 10,000 strategies of one model, and 100 models with 20 strategies in five rounds. Every command is a process
of its own, start-up included, and alternates with a plain reader of the same file in another process: `json.loads` of
each line. Prints the median processor seconds of both and their ratio. `show`, `list` and `export` fail above 4 times
the plain reader; so does `compare` of 5,000 rows, in one group and in groups of 20; `show` of 100,000 records fails
above 1.5 times, or 400 MiB.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks import spent, verdict
from profiler.core.case import Trial, encode
from profiler.core.record import Record
from profiler.runs import store
from tests import examples, make

RECORDS, TURNS, LIMIT = 10_000, 3, 4.0
MANY, MANY_LIMIT, MANY_BYTES = 100_000, 1.5, 400 << 20
COMPARED = 5_000
PLAIN = """
import json, sys
records = [json.loads(line) for name in sys.argv[1:] for line in open(name, encoding="utf-8")]
"""
COMMAND = """
import sys
from profiler.cli import main
try:
    main()
finally:
    status = open("/proc/self/status", encoding="ascii").read()
    print("\\n", status.partition("VmHWM:")[2].split()[0])  # of this process: ru_maxrss has its parent's too
"""
COMMANDS = (
    ("show",),
    ("show", "--width", "80"),
    ("show", "--json"),
    *(("export", "--to", kind) for kind in ("csv", "json", "md", "latex")),
)


def main() -> int:
    shapes = {"strategies": strategies, "models": models}
    late = 0
    with tempfile.TemporaryDirectory() as name:
        for shape, records in shapes.items():
            folder = write(Path(name) / shape / "run", records(RECORDS))
            for first, *rest in COMMANDS:
                late += _is_late(f"{' '.join([first, *rest])}, {shape}", [first, str(folder), *rest], [folder])
            late += _is_late(f"list, {shape}", ["list", "--folder", str(folder.parent)], [folder])
        for shape, records in shapes.items():
            both = [write(Path(name) / f"compared-{shape}", records(COMPARED))] * 2
            late += _is_late(f"compare of {COMPARED:,}, {shape}", ["compare", *map(str, both)], both)
        many = write(Path(name) / "many", strategies(MANY))
        words = ["show", str(many)]
        late += _is_late(f"show of {MANY:,}", words, [many], limit=MANY_LIMIT, most_bytes=MANY_BYTES, turns=2)
    return int(late > 0)


def strategies(count: int) -> Iterator[Record]:
    """One model, every record another strategy."""
    chance = random.Random(0)
    for number in range(count):
        yield make.record("none" if number == 0 else f"segments:k={number}", **_readings(chance))


def models(count: int) -> Iterator[Record]:
    """Batch sizes with twenty strategies and five rounds each; of 10,000 records a hundred."""
    chance = random.Random(0)
    for number in range(count):
        batch_size, round_, strategy = number // 100 + 1, number // 20 % 5 + 1, number % 20
        case = make.case(f"segments:k={strategy + 1}" if strategy else "none", batch_size=batch_size)
        yield make.record(case=case, round=round_, **_readings(chance))


def write(folder: Path, records: Iterator[Record]) -> Path:
    """Write a run of these records, and return its folder."""
    every = list(records)
    plan = tuple(Trial(case=record.case, round=record.round) for record in every)
    store.create(folder, plan=plan, command="gcprof run", environment=examples.ENVIRONMENT, sources={})
    (folder / "trials.jsonl").write_bytes(b"".join(encode(record) + b"\n" for record in every))
    return folder


def _readings(chance: random.Random) -> dict[str, object]:
    return {
        "peak": chance.randrange(50 * make.MIB, 100 * make.MIB),
        "seconds": tuple(chance.uniform(0.1, 0.2) for _ in range(5)),
    }


def _is_late(
    name: str,
    words: list[str],
    folders: list[Path],
    *,
    limit: float = LIMIT,
    most_bytes: int | None = None,
    turns: int = TURNS,
) -> bool:
    """Print what a command takes beside the plain reader of its runs; whether that is too much."""
    files = [str(folder / "trials.jsonl") for folder in folders]
    taken = [(*_taken(COMMAND, words), _taken(PLAIN, files)[0]) for _ in range(turns)]
    seconds, nbytes, plain = (median(values) for values in zip(*taken, strict=True))
    ratio = seconds / plain
    is_late = ratio > limit or (most_bytes is not None and nbytes > most_bytes)
    print(
        f"{name:36} {seconds:5.2f} s  plain reader {plain:5.2f} s  {ratio:4.1f} x (at most {limit:g})"
        f"  {nbytes / 2**20:4.0f} MiB  {verdict(not is_late)}",
        flush=True,
    )
    return is_late


def _taken(code: str, words: list[str]) -> tuple[float, float]:
    """Processor seconds, and the most bytes that the process itself held (0 if it does not say)."""
    used = spent([sys.executable, "-c", code, *words])
    return used.processor, int((used.output.split() or [b"0"])[-1]) * 1024


if __name__ == "__main__":
    sys.exit(main())
