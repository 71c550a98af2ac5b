"""Every fault that gcprof survives, by number: `just faults`.

Runs the tests of tests/faults, then those that take long or go by the clock, and prints row, result and time. A row is
right when its test passes and its twin does, which has the protection removed and shows the harm.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tests.faults.rows import FAULTS

ROOT = Path(__file__).parents[1]
LONG = {  # words after `python -m`: in full, and for CI
    "kill -9 of parent and worker": ("tests.kill --times 300", "tests.kill --times 1"),
    "fuzzed files": ("tests.fuzz --times 50000", "tests.fuzz --times 1000"),
    "load": ("tests.load", "tests.load --trials 1000 --real 30 --rehearsed 30"),
}


class Test(NamedTuple):
    """One test as pytest told it; kind is fault or twin."""

    kind: str
    number: int
    result: str
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(description="every fault by number: row, result, time")
    parser.add_argument("--quick", action="store_true", help="fewer kills, files and trials, as in CI")
    parser.add_argument("--only", choices=("rows", "long"))
    asked = parser.parse_args()
    wrong = 0
    if asked.only != "long":
        wrong += _rows()
    if asked.only != "rows":
        wrong += sum(_long(name, full if not asked.quick else quick) for name, (full, quick) in LONG.items())
    return int(wrong > 0)


def _rows() -> int:
    """Print the rows; how many are not right."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = ["-q", "--no-header", "-m", "", "tests/faults", f"--junit-xml={report}"]
        done = subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, capture_output=True, text=True)
        found = tests(report.read_text())
    wrong = [number for number in FAULTS if not _told(number, [one for one in found if one.number == number])]
    if done.returncode:
        print(done.stdout[-20_000:])
    print(f"{len(FAULTS) - len(wrong)} of {len(FAULTS)} rows are right", flush=True)
    return len(wrong) + (done.returncode != 0)


def tests(report: str) -> list[Test]:
    """The tests of a JUnit report that carry a number."""
    found = []
    for case in ElementTree.fromstring(report).iter("testcase"):
        if match := re.match(r"test_(fault|twin)_(\d+)_", case.get("name", "")):
            result = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
            found.append(Test(match[1], int(match[2]), result, float(case.get("time", 0))))
    return found


def _told(number: int, found: list[Test]) -> bool:
    """Print one row; whether it is right."""
    results: dict[str, list[str]] = defaultdict(list)
    for test in found:
        results[test.kind].append(test.result)
    bad = any(result in ("failure", "error") for result in results["fault"] + results["twin"])
    right = not bad and "passed" in results["fault"] and "passed" in results["twin"]
    counts = f"{results['fault'].count('passed'):3} tests {results['twin'].count('passed'):2} twins"
    skipped = sum(test.result == "skipped" for test in found)
    seconds = sum(test.seconds for test in found)
    told = f"{number:3} {FAULTS[number]:62} {counts} {'passed' if right else 'FAILED':7} {seconds:7.1f} s"
    print(told + (f"  ({skipped} need a GPU or more)" if skipped else ""), flush=True)
    return right


def _long(name: str, words: str) -> bool:
    """Run a benchmark to its end and print its row; whether it failed."""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-m", *words.split()], cwd=ROOT, capture_output=True, text=True)
    result = "FAILED" if done.returncode else "passed"
    last = (done.stdout.strip().splitlines() or [""])[-1]
    print(f"    {name:62} {result:7} {time.monotonic() - began:7.1f} s  {last}", flush=True)
    if done.returncode:
        print(done.stdout[-5_000:] + done.stderr[-5_000:])
    return done.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
