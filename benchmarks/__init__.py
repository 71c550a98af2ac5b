"""The frame of benchmarks: words, steps, processes that are started, kept results, tables and pages."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
if not find_spec("msgspec"):  # on a GPU machine, for which `just gpu-packages` has filled this folder
    sys.path.append(str(ROOT / "build/gpu-site"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), sys.path[-1])))

from msgspec import UNSET, Struct  # noqa: E402

from profiler import __version__  # noqa: E402
from profiler.core import catalogue  # noqa: E402
from profiler.core.case import Case, Choice, Trial, decode, encode  # noqa: E402
from profiler.core.record import Record  # noqa: E402
from profiler.engines.local import Local  # noqa: E402
from profiler.training import OPTIMIZERS, STRATEGIES, models  # noqa: E402
from profiler.workflows.spec import Request  # noqa: E402

GCPROF = (sys.executable, "-m", "profiler")


def parser(about: str | None, names: str = "", *, minutes: float | None = None) -> argparse.ArgumentParser:
    """Return a parser of `-o`, a page that is written, of `names`, where these choose, and of what `resumed` asks."""
    made = argparse.ArgumentParser(description=about)
    made.add_argument("-o", "--output", type=Path, help="write the tables into this page, or what is made here")
    if names:
        made.add_argument("names", nargs="*", help=names)
    if minutes:
        made.add_argument("--keep", type=Path, help="a file of what was found, to go on from")
        made.add_argument("--within", type=float, default=minutes, help="minutes: no row is begun later")
    return made


class Row(Struct, frozen=True, kw_only=True):
    """A training step, of a user's words."""

    model: str
    batch_size: int | None = None
    device: str = "h100"  # a GPU's
    precision: str = "fp32"
    optimizer: str = "sgd"
    strategy: str = "none"
    ranks: int = 0
    parallel: str = "ddp"  # of ranks

    def __str__(self) -> str:
        return f"{self.device} {self.model} b{self.batch_size} {self.precision} {self.optimizer} {self.strategy}"

    def request(self, device: str) -> Request:
        """Return the step as a user asks for it on a device."""
        return Request(
            model=self.model, batch_size=str(self.batch_size), precision=self.precision, optimizer=self.optimizer,
            strategies=self.strategy, device=device,
        )  # fmt: skip

    def case(self, device: str, **fields: Any) -> Case:
        """Return the step on a device: `cpu`, `rehearse:h100`."""
        return Case(
            model=catalogue.resolve(Choice(self.model), models.TABLE),
            strategy=catalogue.resolve(Choice(self.strategy), STRATEGIES),
            optimizer=catalogue.resolve(Choice(self.optimizer), OPTIMIZERS),
            device=device,
            **{"batch_size": self.batch_size, "precision": self.precision, "verify": "off", **fields},
            ranks=self.ranks or UNSET,
            parallel=Choice(self.parallel) if self.ranks else UNSET,
        )


def record(engine: Local, case: Case, *passes: str) -> Record:
    """Return what gcprof says of the step, after its memory pass or those named."""
    (found,) = engine.run([Trial(case=case, passes=passes or ("memory",))])
    return found


def called(module: str, function: str, *words: str) -> tuple[str, ...]:
    """Return the command that calls a function with words in a new interpreter, and prints as JSON what it returns."""
    ready = f"import sys; sys.path[0] = {str(ROOT)!r}; from {module} import {function} as function"
    said = "from profiler.core.case import encode; print(encode(function(*sys.argv[1:])).decode())"
    return sys.executable, "-c", f"{ready}; {said}", *words


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


def is_missed(title: str, value: float, bound: float, more: str = "") -> bool:
    """Print a value beside the most that it may be, and more; return whether it is above that."""
    missed = value > bound
    print(f"{title:44} {value:8.3f}  at most {bound:<6.3g} {'MISSED' if missed else 'met':6}  {more}", flush=True)
    return missed


def resumed(rows: Sequence[Any], kind: Any, asked: argparse.Namespace, find: Callable[[Any], Any]) -> list[Any]:
    """Return what an earlier run has found of these rows, and what is found of the others; prints the cells of each."""
    known = {one.row: one for one in kept(asked.keep, kind) if one.row in rows}
    until = time.monotonic() + 60 * asked.within
    for row in (*known, *(row for row in rows if row not in known)):
        if row not in known:
            if time.monotonic() > until:
                break
            known[row] = find(row)
            keep(asked.keep, known[row])
        print(*known[row].cells, sep=" | ", flush=True)
    return list(known.values())


def kept(file: Path | None, kind: Any) -> list[Any]:
    """Return what an earlier run has kept in a file, a line each."""
    lines = file.read_bytes().splitlines() if file and file.exists() else []
    return [decode(line, kind) for line in lines]


def keep(file: Path | None, one: Any) -> None:
    if file:
        with file.open("ab") as kept_file:
            kept_file.write(encode(one) + b"\n")


def table(head: str, rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown; a heading that ends with `:` is of numbers. Nothing where there are no rows."""
    names = head.split(" | ")
    lines = [f"| {' | '.join(map(str, cells))} |\n" for cells in ([name.removesuffix(":") for name in names], *rows)]
    rule = "|".join("--:" if name.endswith(":") else "---" for name in names)
    return "".join((lines[0], f"|{rule}|\n", *lines[1:])) if lines[1:] else ""


def made(words: str, *, on_cores: bool = False) -> str:
    """Return by what a page was made."""
    cores = f", on {os.cpu_count()} cores that other work shared" if on_cores else ""
    return f"Made by `python -m benchmarks {words}` with gcprof {__version__} and torch {version('torch')}{cores}."


def write(page: Path | None, name: str, text: str) -> None:
    """Write the part of a page between `<!-- name -->` and the next `<!-- end -->` anew."""
    if page:
        before, mark, rest = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
        assert mark, f"{page} has no part <!-- {name} -->"
        page.write_text(
            f"{before}{mark}\n{text.strip()}\n\n<!-- end -->{rest.partition('<!-- end -->')[2]}", encoding="utf-8"
        )
