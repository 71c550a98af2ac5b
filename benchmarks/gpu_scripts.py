"""Training scripts on the CUDA device that is here, with nothing beside them: `python -m benchmarks.gpu_scripts FILE`.

Each script of tests/scripts that one GPU can run is a row: the peak and what is reserved of each process, as PyTorch's
allocator says at its end, and, where counters can be put in by hand, the peak of each phase. `FILE --against h100`
rehearses the same scripts without the device, under the same torch, and fails where a byte differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from profiler.rehearsal.smoke import proven_libraries
from tests.scripts import by_hand, runs

WORKERS = 6  # bytes alone: neighbors leave them as they are
Phases = dict[str, int]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="of the rows")
    parser.add_argument("--names", default="", help="scripts, by commas; all otherwise")
    parser.add_argument("--hollow", default="", help="a hollow device: a dry run")
    parser.add_argument("--against", default="", help="the device of the rows, by its word: rehearse them")
    asked = parser.parse_args()
    if asked.hollow:
        proven_libraries()  # once, before several processes open them
    if asked.against:
        return compare([json.loads(line) for line in asked.file.read_text().splitlines()], asked.against)
    scripts = [script for script in runs.TABLE.values() if script.num_gpus == 1 and not script.missing]
    chosen = [script for script in scripts if not asked.names or script.name in asked.names.split(",")]
    with asked.file.open("w", encoding="utf-8") as file, ThreadPoolExecutor(WORKERS) as pool:
        for row in pool.map(lambda script: measured(script, asked.hollow), chosen):
            print(json.dumps(row), file=file, flush=True)
            print(row["script"], row["exit_code"], f"{row['seconds']:.0f} s", row["figures"], flush=True)
    return 0


def measured(script: runs.Script, device: str) -> dict[str, Any]:
    """Run a script as it is, and with counters put in by hand where that is known."""
    done = _alone(script, device)
    row = {"script": script.name, "exit_code": done.exit_code, "seconds": done.seconds, "figures": _rows(done)}
    if done.exit_code:
        row["said"] = done.said[-2000:]
    if script.name in by_hand.MARKS:
        row["phases"] = by_hand.peaks(by_hand.rows(_alone(script, device, is_marked=True).said))
    return row


def _alone(script: runs.Script, device: str, *, is_marked: bool = False) -> runs.Run:
    with tempfile.TemporaryDirectory() as name:
        here, kept = Path(name, "scripts"), Path(name, "kept")
        here.mkdir()
        kept.mkdir()
        path = runs.copied(here) / f"{script.name}.py"
        if is_marked:
            path.write_text(by_hand.marked(script.name, path.read_text()))
        return runs.control(script.words, cwd=here, kept=kept, device=device)


def compare(rows: list[dict[str, Any]], device: str) -> int:
    """Print each row beside what a rehearsal says; return 1 where one differs."""
    num_different = 0
    for row in rows:
        with tempfile.TemporaryDirectory() as name:
            done = runs.rehearsed(runs.TABLE[row["script"]].words, cwd=runs.copied(Path(name)), device=device)
        if "phases" in row:
            (process,) = done.document["variants"][0]["processes"]
            told = by_hand.told(process)
            print(row["script"], {name: (row["phases"].get(name), told.get(name)) for name in told | row["phases"]})
            num_different += told != row["phases"]
        print(row["script"], "measured", row["figures"], "rehearsed", _rows(done), flush=True)
        num_different += row["figures"] != _rows(done)
    return int(bool(num_different))


def _rows(done: runs.Run) -> list[list[Any]]:
    return [[figures.rank, figures.peak_bytes, figures.reserved_bytes] for figures in done.figures]


if __name__ == "__main__":
    sys.exit(main())
