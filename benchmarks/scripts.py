"""Training scripts as people write them: watched by `gcprof rehearse`, and the same without the watch.

Each script of tests/scripts runs unchanged, in a folder of its own, on hollow GPUs: once with nothing beside it but a
line at its end that says what PyTorch's allocator says, and once under `gcprof rehearse`. Fails where the two do not
agree to the byte. With `--traps` the programs are others of tests/scripts, each run once, under the watch. `-o`
writes the table into its part of the document; `--keep FILE` goes on with the rows of an earlier run that was cut.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import msgspec

from profiler import __version__
from profiler.core.units import bytes_text
from tests.scripts import runs
from tests.scripts.runs import Run, Script

MOST_LETTERS = 200  # of a reason
SECOND = "## Programs with traps"
SCRIPTS_HEAD = f"""# Training scripts, rehearsed

Each row is a command that trains something, run as it stands on GPUs that were not there, by
`gcprof rehearse --device {runs.DEVICE} -- COMMAND`. Nothing here was measured. Peak and reserved are those of the
process that reserves most; the phase is that of its peak. They are held to the same command on the same GPUs without
the watch, with one line at its end that prints `torch.cuda.max_memory_allocated()` and `max_memory_reserved()`: equal
is said where both numbers of all processes are, to the byte. Without the watch no value of the GPU is known, so of
three scripts (`word_language_model`, `trainer`, `trainer_lora`) what a library reads there, whether a mask is causal
and whether rows are packed, is decided by hand, as it is on a GPU. Seconds are of the whole command, with its import of
torch, under the watch and without it. The scripts are those of `tests/scripts`.

MADE

| command | peak | reserved | phase of the peak | line | processes | equal | seconds | without |
|---|--:|--:|---|---|--:|---|--:|--:|
"""
TRAPS_HEAD = f"""{SECOND}

Programs in the usual idiom of their libraries, which trip over what a GPU without arithmetic lacks: values that decide
sizes, ranks that talk, libraries with CUDA code of their own. Each is run unchanged, once, by
`gcprof rehearse --device DEVICE --limit {runs.LIMIT_SECONDS} -- COMMAND`; they are of `tests/scripts`,
too. Peak and reserved are those of the process that reserves most; where a size was assumed they hold for
the assumed values; shortages are those of memory that the program caught.

MADE

| program | command | device | ran to its end | peak | reserved | processes | assumed | shortages | seconds |
|---|---|---|---|--:|--:|--:|---|--:|--:|
"""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A command, watched; and not, if it is none of the traps."""

    script: Script
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
        if self.alone is None:
            outcomes = [variant["outcome"] for variant in self.variants]
            return self.watched.exit_code == 0 and outcomes == ["ok"] and bool(self.processes)
        are_over = self.alone.exit_code == self.watched.exit_code == 0
        return are_over and bool(self.alone.figures) and self.alone.figures == self.watched.figures

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
    def text(self) -> str:
        """The row of its table."""
        script, most = self.script, max(self.watched.figures, key=lambda of: of.reserved_bytes, default=None)
        nbytes = [bytes_text(most.peak_bytes), bytes_text(most.reserved_bytes)] if most else ["", ""]
        seconds = f"{self.watched.seconds:.0f}"
        if self.alone:
            phases = max((one["phases"] for one in self.processes), key=lambda of: max(p["reserved_bytes"] for p in of))
            phase = max(phases, key=lambda phase: phase["peak_bytes"])
            name = f"{phase['name']}, first step" if phase["is_first_step"] else phase["name"]
            is_equal = "yes" if self.is_good else "**no**"
            more = [name, phase["line"], str(len(self.processes)), is_equal, seconds, f"{self.alone.seconds:.0f}"]
            return f"| `{_command(script)}` | {' | '.join([*nbytes, *more])} |\n"
        device = script.device if script.num_gpus == 1 else f"{script.device}:{script.num_gpus}"
        ended = "yes" if self.is_good else f"**no**: {self.reason}"
        is_assumed = any(value["is_size"] for process in self.processes for value in process.get("assumed", ()))
        shortages = str(sum(len(process["shortages"]) for process in self.processes) or "")
        more = [str(len(self.processes)), "yes" if is_assumed else "no", shortages, seconds]
        return f"| {script.name} | `{_command(script)}` | {' | '.join([device, ended, *nbytes, *more])} |\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these scripts")
    parser.add_argument("-o", "--output", type=Path, help="write the table to this document")
    parser.add_argument("--keep", type=Path, help="append each row to this file, and run none again that it has")
    parser.add_argument("--traps", action="store_true", help="programs of which each trips over something")
    asked = parser.parse_args()
    lines = asked.keep.read_bytes().splitlines() if asked.keep and asked.keep.exists() else []
    known = {row.script.name: row for row in (msgspec.json.decode(line, type=Row) for line in lines)}
    rows, absent = list[Row](), ""
    for name, script in (runs.TRAPS if asked.traps else runs.TABLE).items():
        if asked.names and name not in asked.names:
            continue
        if script.missing:
            absent += f"\nNot run: {name}: {', '.join(script.missing)} not installed.\n"
            continue
        rows.append(known.get(name) or run(script, is_trap=asked.traps))
        print(rows[-1].text, end="", flush=True)
        if asked.keep and name not in known:
            with asked.keep.open("ab") as file:
                file.write(msgspec.json.encode(rows[-1]) + b"\n")
    print(absent, file=sys.stderr)
    if asked.output and rows:
        _write(asked.output, rows, absent, is_second=asked.traps)
    return int(not rows or (not asked.traps and not all(row.is_good for row in rows)))


def run(script: Script, *, is_trap: bool) -> Row:
    """Run a script in a folder of its own, with the watch and, if it is no trap, without."""
    with tempfile.TemporaryDirectory() as name:
        here, kept = Path(name, "scripts"), Path(name, "kept")
        here.mkdir()
        kept.mkdir()
        runs.copied(here)
        if is_trap:
            limit = ("--limit", str(runs.LIMIT_SECONDS))
            watched = runs.rehearsed(script.words, *limit, cwd=here, num_gpus=script.num_gpus, device=script.device)
            names = packages_distributions()
            packages = {package: version(names[package][0]) for package in script.needs if package in names}
            return Row(script=script, watched=watched, packages=packages)
        alone = runs.control(script.words, cwd=here, kept=kept, num_gpus=script.num_gpus, decided=script.decided)
        watched = runs.rehearsed(script.words, *script.options, cwd=here, num_gpus=script.num_gpus)
        if not watched.figures:
            raise SystemExit(f"{script.name}: no figures: {watched.said[-2000:]}")
        return Row(script=script, watched=watched, alone=alone)


def _command(script: Script) -> str:
    """Return the command as one would type it: the port is there so that several can run at once."""
    words = list(script.words)
    for port in {"--master-port", "--main_process_port"} & set(words):
        place = words.index(port)
        del words[place : place + 2]
    return " ".join(words)


def _write(path: Path, rows: list[Row], absent: str, *, is_second: bool) -> None:
    """Write one of the two tables to the document, and leave the other as it is."""
    options, head = (" --traps", TRAPS_HEAD) if is_second else ("", SCRIPTS_HEAD)
    made = f"Made by `python -m benchmarks.scripts{options}` with gcprof {__version__} and torch {version('torch')}, on"
    made += f" {os.cpu_count()} cores that other work shared."
    packages = sorted({f"{name} {number}" for row in rows for name, number in row.packages.items()})
    made += f" {sum(row.is_good for row in rows)} of {len(rows)} ran to their end. Packages: {', '.join(packages)}." * (
        is_second
    )
    text = head.replace("MADE", made) + "".join(row.text for row in rows) + absent
    first, mark, second = (path.read_text(encoding="utf-8") if path.exists() else "").partition(SECOND)
    path.write_text(f"{first.rstrip()}\n\n{text}" if is_second else f"{text}\n{mark}{second}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
