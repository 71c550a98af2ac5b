"""Training scripts as people write them: watched by `gcprof rehearse`, and the same without the watch.

Each script of tests/scripts runs unchanged, in a folder of its own, on hollow GPUs: once with nothing beside it but a
line at its end that says what PyTorch's allocator says, and once under `gcprof rehearse`. Fails where the two do not
agree to the byte. With `--traps` the programs are others of tests/scripts, each run once, under the watch. `-o`
writes the table into its part of the document; `--keep FILE` goes on with the rows of an earlier run that was cut.

`--here --keep FILE` needs a CUDA device: each script that one GPU can run, alone on it (`--here h100`: on a hollow
one), and where counters can be put in by hand, the peak of each phase. `--against DEVICE --keep FILE` then rehearses
the same scripts without the device, under the same torch, and fails where a byte differs.
"""

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import keep, kept, made, parser, resumed, table, write
from profiler.core.units import bytes_text
from profiler.rehearsal.smoke import proven_libraries
from tests.scripts import by_hand, runs
from tests.scripts.runs import Run, Script

MOST_LETTERS = 200  # of a reason
WORKERS = 6  # scripts at once on the device that is here: bytes alone, which neighbors leave as they are
SCRIPTS = "command | peak: | reserved: | phase of the peak | line | processes: | equal | seconds: | without:"
TRAPS = "program | command | device | ran to its end | peak: | reserved: | processes: | assumed | shortages: | seconds:"


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """A command, watched; and not, if it is none of the traps."""

    row: Script
    watched: Run
    alone: Run | None = None
    packages: dict[str, str] = {}  # versions of those that it needs

    @property
    def variants(self) -> list[dict[str, Any]]:
        return self.watched.document.get("variants", [])

    @property
    def processes(self) -> list[dict[str, Any]]:
        return [process for variant in self.variants for process in variant["processes"]]

    @property
    def is_good(self) -> bool:
        """Whether it ran to its end, and took what it takes without the watch."""
        if self.watched.exit_code:
            return False
        if self.alone is None:
            return [variant["outcome"] for variant in self.variants] == ["ok"] and bool(self.processes)
        figures = self.alone.figures
        return not self.alone.exit_code and bool(figures) and figures == self.watched.figures

    @property
    def reason(self) -> str:
        """Why it did not end, in gcprof's words; in the script's own where gcprof has none."""
        dead = sorted((process for process in self.processes if process["died"]), key=lambda process: process["died"])
        stuck = [one["detail"] for one in (*dead[:1], *self.variants) if one["detail"]]
        last = [line for line in self.watched.said.splitlines() if line.strip()][-1:]
        text = " ".join(stuck[:1] or last) or f"it ended with {self.watched.exit_code}"
        half = MOST_LETTERS // 2
        text = f"{text[:half]} ... {text[-half:]}" if len(text) > MOST_LETTERS else text  # the line is at its end
        return text.replace("|", "\\|").replace("\n", " ")

    @property
    def cells(self) -> tuple[object, ...]:
        script, most = self.row, max(self.watched.figures, key=lambda of: of.reserved_bytes, default=None)
        nbytes = [bytes_text(most.peak_bytes), bytes_text(most.reserved_bytes)] if most else ["", ""]
        words = [word for word in script.words if not word.isdigit() or len(word) < 5]  # without ports
        command = f"`{' '.join(word for word in words if word not in ('--master-port', '--main_process_port'))}`"
        count, seconds = len(self.processes), f"{self.watched.seconds:.0f}"
        if self.alone:
            phases = max((one["phases"] for one in self.processes), key=lambda of: max(p["reserved_bytes"] for p in of))
            phase = max(phases, key=lambda phase: phase["peak_bytes"])
            name = f"{phase['name']}, first step" if phase["is_first_step"] else phase["name"]
            is_equal, alone = "yes" if self.is_good else "**no**", f"{self.alone.seconds:.0f}"
            return (command, *nbytes, name, phase["line"], count, is_equal, seconds, alone)
        device = script.device if script.num_gpus == 1 else f"{script.device}:{script.num_gpus}"
        ended = "yes" if self.is_good else f"**no**: {self.reason}"
        is_assumed = any(value["is_size"] for process in self.processes for value in process.get("assumed", ()))
        shortages = sum(len(process["shortages"]) for process in self.processes) or ""
        return (script.name, command, device, ended, *nbytes, count, "yes" if is_assumed else "no", shortages, seconds)


def main() -> int:
    arguments = parser(__doc__, "only these scripts", minutes=600)
    arguments.add_argument("--traps", action="store_true", help="programs of which each trips over something")
    arguments.add_argument("--here", nargs="?", const="", help="run them on the device that is here, or a hollow one")
    arguments.add_argument("--against", default="", help="the device of the rows, by its word: rehearse them")
    asked = arguments.parse_args()
    if asked.against:
        return compare(kept(asked.keep, dict[str, Any]), asked.against)
    name, programs, head = ("traps", runs.TRAPS, TRAPS) if asked.traps else ("scripts", runs.TABLE, SCRIPTS)
    chosen = [script for script in programs.values() if not asked.names or script.name in asked.names]
    absent = "".join(f"\nNot run: {script.name}: {', '.join(script.missing)}.\n" for script in chosen if script.missing)
    chosen = [script for script in chosen if not script.missing]
    if asked.here is not None:
        return run_here([script for script in chosen if script.num_gpus == 1], asked)
    rows = resumed(chosen, Watched, asked, partial(run, is_trap=asked.traps))
    num_good = sum(row.is_good for row in rows)
    packages = sorted({f"{name} {number}" for row in rows for name, number in row.packages.items()})
    said = f"{made('scripts' + ' --traps' * asked.traps, on_cores=True)} {num_good} of {len(rows)} ran to their end."
    said += f" Packages: {', '.join(packages)}." if packages else ""
    write(asked.output if rows else None, name, f"{said}\n\n{table(head, (row.cells for row in rows))}{absent}")
    print(absent, file=sys.stderr)
    return int(not rows or (not asked.traps and num_good < len(rows)))


def run(script: Script, *, is_trap: bool) -> Watched:
    """Run a script in folders of its own, with the watch and, if it is none of the traps, without."""
    if is_trap:
        watched, names = _rehearsed(script, "--limit", str(runs.LIMIT_SECONDS)), packages_distributions()
        packages = {package: version(names[package][0]) for package in script.needs if package in names}
        return Watched(row=script, watched=watched, packages=packages)
    alone, watched = _alone(script), _rehearsed(script)
    if not watched.figures:
        raise SystemExit(f"{script.name}: no figures: {watched.said[-2000:]}")
    return Watched(row=script, watched=watched, alone=alone)


def _rehearsed(script: Script, *options: str, device: str = "") -> Run:
    with tempfile.TemporaryDirectory() as name:
        how = {"cwd": runs.copied(Path(name)), "num_gpus": script.num_gpus, "device": device or script.device}
        return runs.rehearsed(script.words, *script.options, *options, **how)


def _alone(script: Script, device: str = runs.DEVICE, *, is_marked: bool = False) -> Run:
    """Run a script in a folder of its own without the watch; on the GPU that is here if no device is named."""
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as end:
        path = runs.copied(Path(name)) / f"{script.name}.py"
        if is_marked:
            path.write_text(by_hand.marked(script.name, path.read_text()))
        how: dict[str, Any] = {"num_gpus": script.num_gpus, "decided": script.decided} if device else {}
        return runs.control(script.words, cwd=path.parent, kept=Path(end), device=device, **how)


def run_here(chosen: list[Script], asked: argparse.Namespace) -> int:
    """Run each script as it is on the CUDA device, and with counters put in by hand where that is known."""
    if asked.here:
        proven_libraries()  # once, before several processes open them

    def measured(script: Script) -> dict[str, Any]:
        done = _alone(script, asked.here)
        row = {"script": script.name, "exit_code": done.exit_code, "seconds": done.seconds, "figures": _rows(done)}
        if done.exit_code:
            row["said"] = done.said[-2000:]
        if script.name in by_hand.MARKS:
            row["phases"] = by_hand.peaks(by_hand.rows(_alone(script, asked.here, is_marked=True).said))
        return row

    with ThreadPoolExecutor(WORKERS) as pool:
        for row in pool.map(measured, chosen):
            keep(asked.keep, row)
            print(row["script"], row["exit_code"], f"{row['seconds']:.0f} s", row["figures"], flush=True)
    return 0


def compare(rows: list[dict[str, Any]], device: str) -> int:
    """Print each row beside what a rehearsal says; return 1 where one differs."""
    num_different = 0
    for row in rows:
        done = _rehearsed(runs.TABLE[row["script"]], device=device)
        if "phases" in row:
            (process,) = done.document["variants"][0]["processes"]
            told = by_hand.told(process)
            print(row["script"], {name: (row["phases"].get(name), told.get(name)) for name in told | row["phases"]})
            num_different += told != row["phases"]
        print(row["script"], "measured", row["figures"], "rehearsed", _rows(done), flush=True)
        num_different += row["figures"] != _rows(done)
    return int(bool(num_different))


def _rows(done: Run) -> list[list[Any]]:
    return [[figures.rank, figures.peak_bytes, figures.reserved_bytes] for figures in done.figures]
