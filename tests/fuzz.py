"""Damaged files through every reader: `just fuzz`.

Committed run folders, sweep files, devices, plans and stages are changed by chance, by bytes and by what they say, and
read by the commands that read them, in this process. A reader may refuse a file in one line, with an exit code from 0
to 5. Wrong are: code 70 or any other, a traceback, a warning of Python's, two seconds of the processor (eight for a
plan, twenty for a picture, sixty of the clock) for one file, and more than 512 MiB. Every file is made from the seed
and its number, so that `--first NUMBER --times 1` makes the same one again.
"""

from __future__ import annotations

import argparse
import gc
import io
import random
import resource
import shlex
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from profiler import engines
from profiler.cli import GARBAGE, answer
from profiler.core import gpu_specs, plan_file
from profiler.core.case import Trial
from profiler.core.errors import UserError
from profiler.core.record import Environment, Record
from tests import examples
from tests.fuzz_mutations import mutated
from tests.fuzz_subjects import ROOT, Subject, subjects

SECONDS, PATIENCE_SECONDS = 2.0, 60.0  # of the processor, which a busy machine does not change, and of the clock
PICTURE_SECONDS = 20.0  # a picture of a sound file takes up to five
PLAN_SECONDS = 8.0  # of a file that is sound after all, the solver's own bound; one that is refused takes no time
MEMORY_BYTES = 512 << 20
WORKERS, BATCH = 2, 250
GOOD = range(6)
READERS: dict[str, Callable[[Path], object]] = {  # those of files that no command takes by their path
    "plan-file": plan_file.read,
    "rates": gpu_specs.read,
}


class Violation(NamedTuple):
    """What a reader did that it may not."""

    number: int
    command: str
    what: str

    def __str__(self) -> str:
        return f"file {self.number}: {self.command}: {self.what}"


class Late(BaseException):
    """It takes too long; no reader catches this."""


class Idle:
    """An engine without a machine: it knows a CPU, and every trial of it is skipped."""

    logs: Path | None = None

    def __enter__(self) -> Idle:
        return self

    def __exit__(self, *error: object) -> None: ...

    def survey(self) -> dict[str, Environment]:
        return {"cpu": examples.ENVIRONMENT}

    def ask(self, entry: str, text: str, *, failing: str, rehearses: bool | None = None) -> dict[str, Any]:
        return {"failed": f"{failing}: nothing is asked here"}

    def run(self, trials: Iterable[Trial], done: Iterable[Record] = ()) -> Iterator[Record]:
        for trial in trials:
            yield Record(case=trial.case, round=trial.round, outcome="skipped", detail="not here")


def connect(
    stage_seconds: float = 600.0, logs: Path | None = None, rehearses: bool = False, measures: bool = True
) -> Idle:
    """The engine of these readers."""
    return Idle()


def main() -> int:
    parser = argparse.ArgumentParser(description="damaged files through every reader")
    parser.add_argument("--times", type=int, default=50_000, help="files")
    parser.add_argument("--minutes", type=float, help="end after so long, however many files there were")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first file")
    asked = parser.parse_args()
    until = time.monotonic() + 60 * asked.minutes if asked.minutes else float("inf")
    numbers = range(asked.first, asked.first + asked.times)
    codes: Counter[int] = Counter()
    wrong: list[Violation] = []
    largest = slowest = 0.0
    with ProcessPoolExecutor(WORKERS, initializer=_prepare) as pool:
        batches = [numbers[at : at + BATCH] for at in range(0, len(numbers), BATCH)]
        for found in pool.map(work, ((asked.seed, batch, until) for batch in batches)):
            codes += found.codes
            wrong += found.wrong
            largest, slowest = max(largest, found.mib), max(slowest, found.seconds)
            for one in found.wrong:
                print(one, flush=True)
    told = ", ".join(f"{codes[code]} ended with {code}" for code in sorted(codes))
    print(
        f"{codes.total()} files of seed {asked.seed}: {told}; slowest {slowest:.2f} s, largest {largest:.0f} MiB; "
        f"{len(wrong)} violations"
    )
    return int(bool(wrong) or not codes)


class Found(NamedTuple):
    """What a batch of files came to."""

    codes: Counter[int]
    wrong: list[Violation]
    seconds: float  # of the processor, the slowest file
    mib: float


def work(asked: tuple[int, range, float]) -> Found:
    """Damage and read the files of these numbers, in a folder of their own, until the clock says so."""
    seed, numbers, until = asked
    codes: Counter[int] = Counter()
    wrong: list[Violation] = []
    slowest = 0.0
    known = subjects()
    for number in numbers:
        if time.monotonic() >= until:
            break
        chance = random.Random(f"{seed}-{number}")
        subject = known[chance.randrange(len(known))]
        text = mutated(subject.files[subject.target], chance, kind=subject.kind)
        with tempfile.TemporaryDirectory(prefix="gcprof-fuzz-") as folder, chdir(folder):
            lay(subject, text)
            command = chance.choice(subject.commands)
            began = time.process_time()
            code, what = look(command)
            slowest = max(slowest, time.process_time() - began)
            codes[code] += 1
            wrong += [Violation(number, command, one) for one in what]
            if what:
                _keep(number, subject, text)
    return Found(codes, wrong, slowest, _mib("VmHWM"))


def lay(subject: Subject, text: bytes) -> None:
    """Write the files into the working folder, the damaged one with this text."""
    for name, whole in {**subject.files, subject.target: text}.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(whole)


def look(command: str, *, times: float = 1.0) -> tuple[int, list[str]]:
    """Run one command of a reader, with so many times the usual limits; its exit code, and what it did wrong."""
    seconds = times * _seconds(command)
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="surrogateescape") for _ in range(2))
    try:
        with _limited(seconds, times * PATIENCE_SECONDS), redirect_stdout(out), redirect_stderr(err):
            code = _read(*shlex.split(command))
    except Late:
        return 124, [f"it takes more than {seconds:g} s"]
    err.flush()
    return code, violations(code, err.buffer.getvalue().decode(errors="replace"))


def _seconds(command: str) -> float:
    if "--kind" in command or "--resume" in command:
        return PICTURE_SECONDS
    return PLAN_SECONDS if command.startswith("plan ") else SECONDS


@contextmanager
def _limited(seconds: float, patience: float) -> Iterator[None]:
    """Raise Late after so many seconds of the processor, or of the clock."""
    before = {number: signal.signal(number, _late) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, patience)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def violations(code: int, said: str) -> list[str]:
    """What is wrong with an exit code and with what was said beside the result."""
    complaints = [line for line in said.splitlines() if line.startswith("gcprof: ")]
    wrong = [] if code in GOOD else [f"it ends with {code}: {complaints or said[-300:]}"]
    wrong += [f"it says {word}" for word in ("Traceback", "Warning:") if word in said]
    wrong += [f"{len(complaints)} complaints"] if len(complaints) > 1 else []
    wrong += ["an escape"] if "\x1b" in said else []
    used = _mib("VmHWM")
    return wrong + ([f"it takes {used:.0f} MiB"] if used > MEMORY_BYTES >> 20 else [])


def _read(first: str, *rest: str) -> int:
    if first not in READERS:
        return answer([first, *rest])
    try:
        READERS[first](Path(rest[0]))
    except UserError as error:
        return error.exit_code
    except Exception as error:  # noqa: BLE001  # what the command line would call a fault of its own
        print(f"gcprof: {type(error).__name__}: {error}", file=sys.stderr)
        return 70
    return 0


def _prepare() -> None:
    """In each worker: every reader once, so that what they import does not count; then the limits."""
    gc.set_threshold(GARBAGE)
    warnings.simplefilter("always")
    engines.TABLE["local"] = "tests.fuzz:connect"
    for subject in {one.commands: one for one in subjects()}.values():
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            lay(subject, subject.files[subject.target])
            for command in subject.commands:
                look(command, times=100.0)
    resource.setrlimit(resource.RLIMIT_AS, (int(_mib("VmSize") * 2**20) + MEMORY_BYTES,) * 2)


def _late(number: int, frame: object) -> None:
    raise Late


def _keep(number: int, subject: Subject, text: bytes) -> None:
    """The file of a violation stays where it can be looked at."""
    kept = ROOT / "build" / "fuzz" / f"{number}-{subject.name.replace('/', '-')}"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(text)


def _mib(what: str) -> float:
    """The size of this process: VmHWM, the largest resident one; VmSize, of its addresses."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(what)) / 1024


if __name__ == "__main__":
    sys.exit(main())
