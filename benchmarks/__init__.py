"""The frame of benchmarks: their words, the processes that they start, tables, and the pages that these go into."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from profiler import __version__

ROOT = Path(__file__).parents[1]
GCPROF = (sys.executable, "-m", "profiler")


def parser(about: str | None, names: str = "") -> argparse.ArgumentParser:
    """Return a parser of `-o`, a page that is written, and of `names`, where these choose."""
    made = argparse.ArgumentParser(description=about)
    made.add_argument("-o", "--output", type=Path, help="write the tables into this page, or what is made here")
    if names:
        made.add_argument("names", nargs="*", help=names)
    return made


class Spent(NamedTuple):
    """What a process and its offspring took, and what it printed."""

    clock: float  # seconds
    processor: float
    nbytes: int  # the largest resident set of any of them
    output: bytes
    exit_code: int


def spent(words: Sequence[str], *, may_fail: bool = False, **how: Any) -> Spent:
    """Run a process to its end in the environment of this one, where `how` has no other."""
    with tempfile.TemporaryFile() as out:
        began = time.monotonic()
        given: dict[str, Any] = {"stdout": out, "stderr": subprocess.DEVNULL, **how}
        process = subprocess.Popen(words, **given)
        _, status, used = os.wait4(process.pid, 0)
        clock, process.returncode = time.monotonic() - began, os.waitstatus_to_exitcode(status)
        out.seek(0)
        output = out.read()
    assert may_fail or not process.returncode, f"{' '.join(words)} ended with {process.returncode}"
    return Spent(clock, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, output, process.returncode)


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Run so many processes that only compute beside this one; each ends with it."""
    code = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(number)]
    try:
        time.sleep(1.0 if number else 0.0)
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def verdict(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


def kept(file: Path | None, kind: Any) -> list[Any]:
    """Return what an earlier run has kept in a file, a line each."""
    lines = file.read_bytes().splitlines() if file and file.exists() else []
    return [msgspec.json.decode(line, type=kind) for line in lines]


def keep(file: Path | None, one: Any) -> None:
    if file:
        with file.open("ab") as kept_file:
            kept_file.write(msgspec.json.encode(one) + b"\n")


def row(*cells: object) -> str:
    """Return a line of a table in Markdown."""
    return f"| {' | '.join(map(str, cells))} |\n"


def table(head: str, rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown; a heading that ends with `:` is of numbers. Nothing where there are no rows."""
    names = head.split(" | ")
    lines = [row(*cells) for cells in rows]
    rule = "|".join("--:" if name.endswith(":") else "---" for name in names)
    top = row(*(name.removesuffix(":") for name in names)), f"|{rule}|\n"
    return "".join((*top, *lines)) if lines else ""


def made(words: str, *, on_cores: bool = False) -> str:
    """Return by what a page was made."""
    cores = f", on {os.cpu_count()} cores that other work shared" if on_cores else ""
    return f"Made by `python -m benchmarks.{words}` with gcprof {__version__} and torch {version('torch')}{cores}."


def write(page: Path | None, name: str, text: str) -> None:
    """Write the part of a page between `<!-- name -->` and the next `<!-- end -->` anew."""
    if page:
        before, mark, rest = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
        assert mark, f"{page} has no part <!-- {name} -->"
        page.write_text(
            f"{before}{mark}\n{text.strip()}\n\n<!-- end -->{rest.partition('<!-- end -->')[2]}", encoding="utf-8"
        )
