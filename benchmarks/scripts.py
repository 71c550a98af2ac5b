"""Training scripts as people write them: watched by `gcprof rehearse`, and the same without the watch.

Each script of tests/scripts runs unchanged, in a folder of its own, on hollow GPUs: once with nothing beside it but a
line at its end that says what PyTorch's allocator says, and once under `gcprof rehearse`. Fails where the two do not
agree to the byte. `-o` writes the table; `--keep FILE` goes on with the rows of an earlier run that was cut. With
`--traps` the programs are those of tests/scripts/traps, each run once, and the table is the document's second.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from difflib import ndiff
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from benchmarks import traps as trapped
from benchmarks.traps import HEADING, TrapRow
from profiler import __version__
from profiler.core import gpu_specs
from profiler.core.units import bytes_text
from tests.scripts import runs
from tests.scripts.runs import Run, Script
from tests.scripts.traps import traps

HEAD = """# Training scripts, rehearsed

Each row is a command that trains something, run as it stands on GPUs that were not there, each a {device}, by
`gcprof rehearse --device {word} -- COMMAND`. Nothing here was measured. Peak and reserved are those of the process
that reserves most; the phase is that of its peak. They are held to the same command on the same GPUs without the
watch, with one line at its end that prints `torch.cuda.max_memory_allocated()` and `max_memory_reserved()`: equal is
said where both numbers of all processes are, to the byte. Without the watch no value of the GPU is known, so of three
scripts (`word_language_model`, `trainer`, `trainer_lora`) what a library reads there, whether a mask is causal and
whether rows are packed, is decided by hand, as it is on a GPU. Seconds are of the whole command, with its import of
torch, under the watch and without it.

The scripts are those of `tests/scripts`; lines changed are those of the files that ran, against these.

Made by `python -m benchmarks.scripts` with gcprof {version} and torch {torch}, on {cores} cores that other work
shared: a load of {first} before the first row and {last} after the last.

| command | lines changed | peak | reserved | phase of the peak | line | processes | equal | seconds | without |
|---|--:|--:|--:|---|---|--:|---|--:|--:|
"""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A command, watched and not."""

    script: Script
    alone: Run
    watched: Run
    lines_changed: int  # of the script that ran, against the one in tests/scripts

    @property
    def is_equal(self) -> bool:
        are_good = self.alone.exit_code == self.watched.exit_code == 0
        return are_good and bool(self.alone.figures) and self.alone.figures == self.watched.figures

    def text(self, command: str) -> str:
        """Return the row of the table."""
        phase = _peak_phase(self.watched)
        most = max(self.watched.figures, key=lambda figures: figures.reserved_bytes)
        step = {True: ", first step", False: ""}[phase["is_first_step"]]
        cells = (
            f"`{command}`",
            str(self.lines_changed),
            bytes_text(most.peak_bytes),
            bytes_text(most.reserved_bytes),
            f"{phase['name']}{step}",
            phase["line"],
            str(len(self.watched.figures)),
            "yes" if self.is_equal else "**no**",
            f"{self.watched.seconds:.0f}",
            f"{self.alone.seconds:.0f}",
        )
        return f"| {' | '.join(cells)} |\n"


Kind = TypeVar("Kind", Row, TrapRow)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these scripts")
    parser.add_argument("-o", "--output", type=Path, help="write the table to this document")
    parser.add_argument("--keep", type=Path, help="append each row to this file, and run none again that it has")
    parser.add_argument("--traps", action="store_true", help="programs of which each trips over something")
    asked = parser.parse_args()
    first, absent = _load(), list[str]()
    if asked.traps:
        tried = _rows(traps.TRAPS, asked, TrapRow, trapped.run, absent)
        if asked.output and tried:
            _write(asked.output, _traps(tried, absent), is_second=True)
        return int(not tried)
    rows = _rows(runs.TABLE, asked, Row, run, absent)
    if asked.output and rows:
        _write(asked.output, _page(rows, absent, first=first), is_second=False)
    different = [row for row in rows if not row.is_equal]
    for row in different:
        print(f"{row.script.name}: {row.watched.figures}, not {row.alone.figures}", file=sys.stderr)
    return int(bool(different) or not rows)


def _rows(
    table: dict[str, Script],
    asked: argparse.Namespace,
    kind: type[Kind],
    run: Callable[[Script], Kind],
    absent: list[str],
) -> list[Kind]:
    """Return a row for each script of the table that is asked for: known already, or run now."""
    known = _known(asked.keep, kind)
    rows = []
    for name, script in table.items():
        if asked.names and name not in asked.names:
            continue
        if script.missing:
            absent.append(f"{name}: {', '.join(script.missing)} not installed")
            print(absent[-1], file=sys.stderr)
            continue
        rows.append(known[name] if name in known else run(script))
        if asked.keep and name not in known:
            with asked.keep.open("ab") as file:
                file.write(msgspec.json.encode(rows[-1]) + b"\n")
        print(rows[-1].text(_command(script)), end="", flush=True)
    return rows


def _write(path: Path, text: str, *, is_second: bool) -> None:
    """Write one of the two tables to the document, and leave the other as it is."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    first, _, second = before.partition(HEADING)
    whole = f"{first.rstrip()}\n\n{text}" if is_second else text + (f"\n{HEADING}{second}" if second else "")
    path.write_text(whole, encoding="utf-8")


def _known(path: Path | None, kind: type[Kind]) -> dict[str, Kind]:
    """Return the rows of a file by the names of their scripts."""
    lines = path.read_bytes().splitlines() if path and path.exists() else []
    rows = [msgspec.json.decode(line, type=kind) for line in lines]
    return {row.script.name: row for row in rows}


def run(script: Script) -> Row:
    """Run a script in a folder of its own, without the watch and with it."""
    with tempfile.TemporaryDirectory() as name:
        here, kept = Path(name, "scripts"), Path(name, "kept")
        here.mkdir()
        kept.mkdir()
        runs.copied(here)
        alone = runs.control(script.words, cwd=here, kept=kept, num_gpus=script.num_gpus, decided=script.decided)
        watched = runs.rehearsed(script.words, *script.options, cwd=here, num_gpus=script.num_gpus)
        if not watched.figures:
            raise SystemExit(f"{script.name}: no figures: {watched.said[-2000:]}")
        return Row(script=script, alone=alone, watched=watched, lines_changed=_lines_changed(script, here))


def _lines_changed(script: Script, here: Path) -> int:
    """Return how many lines of the files that ran are not those of tests/scripts."""
    names = [word for word in script.words if (here / word).is_file()]
    folders = (runs.FOLDER, here)
    pairs = [[(folder / name).read_text(encoding="utf-8").splitlines() for folder in folders] for name in names]
    return sum(line.startswith("+ ") for ours, ran in pairs for line in ndiff(ours, ran))


def _peak_phase(watched: Run) -> dict[str, Any]:
    """Return the phase of the peak of the process that reserves most."""
    processes = watched.document["variants"][0]["processes"]
    largest = max(processes, key=lambda process: max(phase["reserved_bytes"] for phase in process["phases"]))
    return max(largest["phases"], key=lambda phase: phase["peak_bytes"])


def _command(script: Script) -> str:
    """Return the command as one would type it: the port is there so that several can run at once."""
    words = list(script.words)
    for port in {"--master-port", "--main_process_port"} & set(words):
        place = words.index(port)
        del words[place : place + 2]
    return " ".join(words)


def _page(rows: Sequence[Row], absent: Sequence[str], *, first: float) -> str:
    import torch

    head = HEAD.format(
        device=gpu_specs.find(runs.DEVICE).name,
        word=runs.DEVICE,
        version=__version__,
        torch=torch.__version__,
        cores=os.cpu_count(),
        first=f"{first:.1f}",
        last=f"{_load():.1f}",
    )
    left_out = "".join(f"\nNot run: {line}.\n" for line in absent)
    return head + "".join(row.text(_command(row.script)) for row in rows) + left_out


def _traps(rows: Sequence[TrapRow], absent: Sequence[str]) -> str:
    import torch

    packages = dict(sorted(pair for row in rows for pair in row.packages.items()))
    head = trapped.HEAD.format(
        heading=HEADING,
        limit=traps.LIMIT_SECONDS,
        num=len(rows),
        num_ran=sum(row.has_run for row in rows),
        version=__version__,
        torch=torch.__version__,
        cores=os.cpu_count(),
        packages=", ".join(f"{name} {version}" for name, version in packages.items()),
    )
    left_out = "".join(f"\nNot run: {line}.\n" for line in absent)
    return head + "".join(row.text(_command(row.script)) for row in rows) + left_out


def _load() -> float:
    return os.getloadavg()[0]


if __name__ == "__main__":
    sys.exit(main())
