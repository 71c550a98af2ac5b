"""Mutation tests of the rooms where truth is made: `just mutants [ROOM or FILE ...] [--sample N] [--seed S]`.

A mutant is the code with one small change: `<` for `<=`, an argument dropped, a name set to None. A test that fails on
it kills it. mutmut runs the room's tests, but the nightly ones, on each mutant, or on N that are drawn at random, of
which the share that is killed is printed with its 95 % interval. Functions that only other processes call are not
reached, and count as not killed. Judge tests that were written for the survivors of one sample by another seed.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from scipy.stats import binomtest

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "mutants"
COPIED = ("profiler", "tests", "benchmarks", "configs", "results/reference", "docs", "pyproject.toml", "README.md")
ARGUMENTS = ["-n", "0", "-m", "not nightly", "-p", "no:cacheprovider", "-p", "tests.quickest_first"]

# mutated code asks for mutmut's settings, which are in the working folder: processes that tests start have another one
ANYWHERE = """import contextlib
from mutmut.configuration import config
with contextlib.chdir({folder!r}):
    config()
"""


class Room(NamedTuple):
    """Files to mutate, and the tests that are to notice."""

    files: tuple[str, ...]  # patterns
    tests: str  # words: `rows` is tests/test_rows.py; a part of the path may stand before it
    left_out: str = "nothing"  # an expression of pytest's -k: tests that take seconds and repeat what quick ones show
    arguments: tuple[str, ...] = ()  # of pytest, besides ARGUMENTS


ROOMS = {
    "meters": Room(
        (
            "profiler/measuring/meters/[!_epst]*.py",
            "profiler/measuring/meters/saved_graph.py",
            "profiler/measuring/meters/wrong_gradients.py",
            "profiler/measuring/meters/time.py",
            "profiler/measuring/trial.py",
        ),
        "meters memory sampling leaks growth needless_graph own_recomputes silent_errors interleaved_timing "
        "paired_time faults/clocks",
        left_out="mnist or transformer or compiled or llama or bert or cifar-resnet or (leaves_no_byte and not offload)"
        " or (checkpoint_sequential and (8 or 32))",
        arguments=("--hollow", "h100"),  # for what only CUDA's allocator tells
    ),
    "equality": Room(
        (
            "profiler/measuring/meters/equality.py",
            "profiler/measuring/meters/__init__.py",
            "profiler/measuring/equality_pass.py",
            "profiler/measuring/trial.py",
        ),
        "meters memory equality_pass equality step_digests ranks levers growth interleaved_timing",
        left_out="mnist or transformer or cifar or llama or dense-chain or it_is_compiled or when_compiled or budget",
    ),
    "planning": Room(
        ("profiler/planning/*.py",),
        "lever_code planning_chain planning_offload planning_plan planning_rules planning_solver emit plan_views",
        left_out="wider or picture or any_word or switch or fsdp_the"
        " or (brute_force and not (equal_stages or [4] or [5])) or (options_pins and not 1)"
        " or loop_of_plain_pytorch or segments_grow or trainer_trains or accelerates_loop or code_of_what_fits",
    ),
    "analysis": Room(
        ("profiler/analysis/*.py",),
        "advice axes comparison cost explanation peak_floor published rows search timing_doubts run_folders "
        "paired_time time_ratio views plots progress_lines tables snapshot hostile_sizes three_kinds "
        "compare_command faults/conditions faults/device_memory faults/results",
        left_out="wider or cropped or names_peak or below_their_unit or record_is_whole or device_that_answers",
    ),
}


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="mutants", description="Run mutants of rooms.")
    parser.add_argument(
        "names", nargs="*", help=f"rooms ({', '.join(ROOMS)}) or files of them; all where none is named"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="run N mutants of each room, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    options = parser.parse_args(words)
    every = {name: files_of(room) for name, room in ROOMS.items()}
    asked = set(options.names)
    if unknown := asked - set(every).union(*every.values()):
        raise SystemExit(f"neither a room ({', '.join(ROOMS)}) nor a file of one: {' '.join(sorted(unknown))}")

    for room, files in every.items():
        chosen = [file for file in files if not asked or asked & {room, file}]
        if chosen:
            prepare(room, chosen)
            names = mutants_of(room, chosen)
            drawn = random.Random(options.seed).sample(names, min(options.sample or len(names), len(names)))
            print(f"{room}: {told(Counter(run(room, drawn).values()))}")
            print(f"a survivor: cd {WORK / room} && mutmut results, mutmut show NAME", flush=True)
    return 0


def files_of(room: Room) -> list[str]:
    """The files of a room that hold code, as paths from the root."""
    paths = [path for pattern in room.files for path in ROOT.glob(pattern) if "def " in path.read_text()]
    return sorted(str(path.relative_to(ROOT)) for path in paths)


def tests_of(room: str) -> list[str]:
    return [re.sub(r"\w+$", r"test_\g<0>.py", f"tests/{word}") for word in ROOMS[room].tests.split()]


def prepare(room: str, files: list[str]) -> None:
    """Copies what the tests need to the room's folder, with mutmut's settings.

    A fork server of its own keeps torch's threads out of the process that forks.
    """
    folder = WORK / room
    shutil.rmtree(folder, ignore_errors=True)
    for name in COPIED:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", ".writer"))
        else:
            shutil.copy2(source, target)
    values = {
        "source_paths": ["profiler"],
        "only_mutate": files,
        "also_copy": [name for name in COPIED if name not in ("profiler", "tests", "pyproject.toml")],
        "pytest_add_cli_args": [*ARGUMENTS, *ROOMS[room].arguments, "-k", f"not ({ROOMS[room].left_out})"],
        "pytest_add_cli_args_test_selection": tests_of(room),
        "process_isolation": "forkserver",
        "use_git_change_detection": False,
    }
    with (folder / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write("\n[tool.mutmut]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
    (folder / "mutants").mkdir()  # Python remembers of a folder on its path that it was not there
    (folder / "mutants" / "sitecustomize.py").write_text(ANYWHERE.format(folder=str(folder)), encoding="utf-8")


def mutants_of(room: str, files: list[str]) -> list[str]:
    """The names of all mutants of these files, as mutmut makes them in the room's folder."""
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.format_utils import get_mutant_name

    with contextlib.chdir(WORK / room):  # where mutmut finds its settings
        return [
            get_mutant_name(Path(file), name)
            for file in files
            for name in mutate_file_contents(file, Path(file).read_text(encoding="utf-8")).mutant_names
        ]


def run(room: str, names: list[str]) -> dict[str, str]:
    """The status of the mutants of these names, by the mutant's name."""
    environment = {**os.environ, "PYTHONPATH": str(WORK / room / "mutants")}  # for the processes that tests start, too

    def mutmut(*words: str, output: int | None = None) -> str:
        call = [sys.executable, "-m", "mutmut", *words]
        return subprocess.run(call, cwd=WORK / room, env=environment, check=True, text=True, stdout=output).stdout

    mutmut("run", *names)
    results = mutmut("results", "--all", "true", output=subprocess.PIPE)
    statuses = dict(re.findall(r"^\s*(\S+): (.+)$", results, re.MULTILINE))
    return {name: statuses[name] for name in names}


def told(statuses: Counter[str]) -> str:
    """The share that was killed, by a failing test or by the limit of time, with its interval."""
    killed, number = statuses["killed"] + statuses["timeout"], statuses.total()
    low, high = binomtest(killed, number).proportion_ci(method="wilson")
    return f"{killed} of {number} killed ({killed / number:.0%}, {low:.0%} to {high:.0%}): {dict(statuses)}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
