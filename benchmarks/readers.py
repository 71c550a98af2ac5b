"""What it takes to read a run of 10,000 records: `just bench-readers`.

Two runs: 10,000 strategies of one model, and 100 models with 20 strategies in five rounds. Every command is a process
of its own, start-up included, and alternates with a plain reader of the same file in another process: `json.loads` of
each line. Prints the median processor seconds of both and their ratio. `show`, `list` and `export` fail above 4 times
the plain reader; so does `compare` of 5,000 rows, in one group and in groups of 20; `show` of 100,000 records fails
above 1.5 times, or 400 MiB.
"""

import random
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks import is_missed, spent
from profiler.core.case import Trial, encode
from profiler.core.record import Record
from profiler.runs import store
from tests import examples, make

RECORDS, TURNS, LIMIT = 10_000, 3, 4.0
MANY, MANY_LIMIT, MANY_MIB = 100_000, 1.5, 400
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
    "show {}",
    "show {} --width 80",
    "show {} --json",
    *(f"export {{}} --to {to}" for to in ("csv", "json", "md", "latex")),
)


def main() -> int:
    late = 0
    with tempfile.TemporaryDirectory() as name:
        for shape in ("strategies", "models"):
            run = written(Path(name) / shape / "run", shape, RECORDS)
            for words in (*COMMANDS, f"list --folder {run.parent}"):
                late += _is_late(f"{words.split(' /')[0].format('')}, {shape}", words.format(run), [run])
            both = [written(Path(name) / f"compared-{shape}", shape, COMPARED)] * 2
            late += _is_late(f"compare {COMPARED:,} {shape}", f"compare {both[0]} {both[1]}", both)
        many = written(Path(name) / "many", "strategies", MANY)
        late += _is_late(f"show {MANY:,}", f"show {many}", [many], limit=MANY_LIMIT, mib=MANY_MIB)
    return int(late > 0)


def written(folder: Path, shape: str, count: int) -> Path:
    """Write a run of one model, every record another strategy; or of batch sizes with 20 strategies and five rounds."""
    chance, records = random.Random(0), list[Record]()
    for number in range(count):
        at, batch_size, round_number = number, 64, 1
        if shape == "models":
            at, batch_size, round_number = number % 20, number // 100 + 1, number // 20 % 5 + 1
        case = make.case(f"segments:k={at + 1}" if at else "none", batch_size=batch_size)
        seconds = tuple(chance.uniform(0.1, 0.2) for _ in range(5))
        peak = chance.randrange(50 * make.MIB, 100 * make.MIB)
        records.append(make.record(case=case, round=round_number, peak=peak, seconds=seconds))
    plan = tuple(Trial(case=record.case, round=record.round) for record in records)
    store.create(folder, plan=plan, command="gcprof run", environment=examples.ENVIRONMENT, sources={})
    (folder / "trials.jsonl").write_bytes(b"".join(encode(record) + b"\n" for record in records))
    return folder


def _is_late(name: str, words: str, runs: list[Path], *, limit: float = LIMIT, mib: float | None = None) -> bool:
    """Print what a command takes beside the plain reader of its runs; whether that is too much."""
    files = [str(run / "trials.jsonl") for run in runs]
    taken = [(*_taken(COMMAND, words.split()), _taken(PLAIN, files)[0]) for _ in range(TURNS)]
    seconds, most, plain = (median(values) for values in zip(*taken, strict=True))
    told = f"x: {seconds:.2f} s, the plain reader {plain:.2f} s, {most:.0f} MiB"
    is_late = is_missed(name, seconds / plain, limit, told)
    return (mib is not None and is_missed(f"{name}, MiB", most, mib)) or is_late


def _taken(code: str, words: list[str]) -> tuple[float, float]:
    """Processor seconds, and the most MiB that the process itself held (0 if it does not say)."""
    used = spent([sys.executable, "-c", code, *words])
    return used.processor, int((used.output.split() or [b"0"])[-1]) / 1024
