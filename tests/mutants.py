"""Mutation tests of the rooms where truth is made: `just mutants` runs mutmut there and writes docs/mutants.md.

Takes rooms of ROOMS or single files of them; the rows of all other files stay as they are.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "mutants"
PAGE = ROOT / "docs" / "mutants.md"
COPIED = ("profiler", "tests", "benchmarks", "configs", "results/reference", "docs", "pyproject.toml", "README.md")
ABOUT = """# Mutants

A mutant is the code with one small change: `<` for `<=`, an argument dropped, a name set to None. A test that fails on
it kills it; a mutant that survives is a change that no quick test of the room notices, or one that changes nothing. The
rooms are those whose errors would be wrong numbers: what reads memory and time, what judges gradients, planning, and
analysis. Functions that only other processes call are not reached, and count as not killed. Made by `just mutants`
(`tests/mutants.py`); a file that is not here has not been mutated yet.
"""


class Room(NamedTuple):
    """Files to mutate, and the quick tests that are to notice."""

    files: tuple[str, ...]  # patterns
    tests: tuple[str, ...]


ROOMS = {
    "meters": Room(
        ("profiler/measuring/meters/[!e]*.py",),
        (
            "tests/test_memory.py",
            "tests/test_sampling.py",
            "tests/test_leaks.py",
            "tests/faults/test_clocks.py",
        ),
    ),
    "equality": Room(
        ("profiler/measuring/meters/equality.py", "profiler/measuring/equality_pass.py"),
        ("tests/test_equality.py", "tests/test_ranks.py"),
    ),
    "planning": Room(
        ("profiler/planning/*.py",),
        (
            "tests/test_planning_chain.py",
            "tests/test_planning_plan.py",
            "tests/test_planning_rules.py",
            "tests/test_planning_solver.py",
            "tests/test_budget.py",
            "tests/test_emit.py",
            "tests/test_plan_views.py",
        ),
    ),
    "analysis": Room(
        ("profiler/analysis/*.py",),
        (
            "tests/test_advice.py",
            "tests/test_axes.py",
            "tests/test_comparison.py",
            "tests/test_contrasts.py",
            "tests/test_cost.py",
            "tests/test_explanation.py",
            "tests/test_floor.py",
            "tests/test_reproduction.py",
            "tests/test_rows.py",
            "tests/test_search.py",
            "tests/test_trust.py",
            "tests/test_validate.py",
            "tests/test_views.py",
            "tests/test_views_files.py",
            "tests/test_comparison_views.py",
            "tests/test_axes_views.py",
            "tests/faults/test_comparisons.py",
            "tests/faults/test_results.py",
        ),
    ),
}


class Row(NamedTuple):
    """What became of the mutants of one file."""

    room: str
    file: str
    mutants: int
    killed: int  # by a failing test, or by the limit of time
    survived: int
    unreached: int  # in functions that no selected test calls in its own process
    date: str
    versions: str


def main(words: list[str]) -> int:
    stored = {row.file: row for row in parsed(PAGE.read_text(encoding="utf-8"))} if PAGE.is_file() else {}
    for room, files in chosen(words).items():
        rows = counted(room, run(room, files), date=datetime.now(UTC).date().isoformat(), versions=versions())
        stored = {file: row for file, row in stored.items() if file not in files and (ROOT / file).is_file()}
        stored |= {row.file: row for row in rows}
        PAGE.write_text(page(list(stored.values())), encoding="utf-8")
        print(f"{room}: {total(rows)}; a survivor: cd {WORK / room} && mutmut results, mutmut show NAME", flush=True)
    return 0


def chosen(words: list[str]) -> dict[str, list[str]]:
    """The files to mutate in each room: all of them, or those that are named or stand in a room that is named."""
    every = {name: files_of(room) for name, room in ROOMS.items()}
    if unknown := set(words) - set(every) - {file for files in every.values() for file in files}:
        raise SystemExit(f"neither a room ({', '.join(ROOMS)}) nor a file of one: {' '.join(sorted(unknown))}")
    kept = {
        room: [file for file in files if not words or room in words or file in words] for room, files in every.items()
    }
    return {room: files for room, files in kept.items() if files}


def files_of(room: Room) -> list[str]:
    """The files of a room that hold code, as paths from the root."""
    paths = [path for pattern in room.files for path in ROOT.glob(pattern) if path.name != "__init__.py"]
    return sorted(str(path.relative_to(ROOT)) for path in paths)


def run(room: str, files: list[str]) -> dict[str, str]:
    """The status of every mutant of these files, by the mutant's name."""
    folder = WORK / room
    shutil.rmtree(folder, ignore_errors=True)
    _copy(folder)
    (folder / "mutants").mkdir()  # Python remembers of a folder on its path that it was not there
    with (folder / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write(settings(room, files))
    environment = {**os.environ, "PYTHONPATH": str(folder / "mutants")}  # for the processes that tests start, too
    mutmut = [sys.executable, "-m", "mutmut"]
    subprocess.run([*mutmut, "run"], cwd=folder, env=environment, check=True)
    results = subprocess.run(
        [*mutmut, "results", "--all", "true"], cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    return dict(re.findall(r"^\s*(\S+): (.+)$", results.stdout, re.MULTILINE))


def _copy(folder: Path) -> None:
    for name in COPIED:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", ".writer"))
        else:
            shutil.copy2(source, target)


def settings(room: str, files: list[str]) -> str:
    """mutmut's part of pyproject.toml. A fork server of its own keeps torch's threads out of the process that forks."""
    values = {
        "source_paths": ["profiler"],
        "only_mutate": files,
        "also_copy": [name for name in COPIED if name not in ("profiler", "tests", "pyproject.toml")],
        "pytest_add_cli_args": ["-n", "0", "-p", "no:cacheprovider"],
        "pytest_add_cli_args_test_selection": list(ROOMS[room].tests),
        "process_isolation": "forkserver",
        "use_git_change_detection": False,
    }
    return "\n[tool.mutmut]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


def counted(room: str, statuses: dict[str, str], *, date: str, versions: str) -> list[Row]:
    """A row for each file, from the statuses of its mutants, which are named `module.function__mutmut_number`."""
    by_file: dict[str, Counter[str]] = {}
    for mutant, status in statuses.items():
        module = mutant.rpartition(".")[0]
        by_file.setdefault(module.replace(".", "/") + ".py", Counter())[status] += 1
    return [
        Row(
            room=room,
            file=file,
            mutants=counts.total(),
            killed=counts["killed"] + counts["timeout"],
            survived=counts["survived"],
            unreached=counts["no tests"],
            date=date,
            versions=versions,
        )
        for file, counts in sorted(by_file.items())
    ]


def versions() -> str:
    return ", ".join(f"{name} {version(name)}" for name in ("gcprof", "mutmut", "torch"))


def total(rows: list[Row]) -> str:
    """What was killed of all mutants of several files."""
    killed, mutants = sum(row.killed for row in rows), sum(row.mutants for row in rows)
    share = f" ({killed / mutants:.0%})" if mutants else ""
    return (
        f"{killed:,} of {mutants:,} mutants killed{share}, in {len(rows)} of {len(files_of(ROOMS[rows[0].room]))} files"
    )


def page(rows: list[Row]) -> str:
    """docs/mutants.md."""
    rooms = [[row for row in sorted(rows) if row.room == room] for room in ROOMS]
    lines = [f"- `{of[0].room}`: {total(of)}" for of in rooms if of]
    lines += ["", "| " + " | ".join(Row._fields) + " |", "|" + "---|" * 2 + "--:|" * 4 + "---|" * 2]
    lines += ["| " + " | ".join(map(str, row)) + " |" for of in rooms for row in of]
    return ABOUT + "\n" + "\n".join(lines) + "\n"


def parsed(text: str) -> list[Row]:
    """The rows of docs/mutants.md."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return [Row(*row[:2], *map(int, row[2:6]), *row[6:]) for row in cells[2:] if row[0] in ROOMS]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
