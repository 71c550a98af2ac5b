"""Damaged files through every reader: `just fuzz`.

Committed run folders, sweep files, devices, plans and stages are changed by chance and read by the commands that read
them, in this process. A reader may refuse a file in one line, with an exit code from 0 to 5. Wrong are other codes, a
traceback, a warning of Python's, too many seconds of the processor for one file, and more than 512 MiB. Every file is
made from the seed and its number: `--first NUMBER --times 1` makes the same one again.
"""

import argparse
import gc
import gzip
import io
import json
import random
import re
import resource
import shlex
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import NamedTuple

from profiler.cli import GARBAGE, answer
from profiler.core import gpu_specs, plan_file
from profiler.core.case import encode_indented
from profiler.core.errors import UserError
from tests import examples

ROOT = Path(__file__).parents[1]
SECONDS, PICTURE_SECONDS, PLAN_SECONDS = 2.0, 20.0, 8.0  # of the processor, which a busy machine does not change
MEMORY_BYTES = 512 << 20
READERS: dict[str, Callable[[Path], object]] = {  # those of files that no command takes by their path
    "plan-file": plan_file.read,
    "rates": gpu_specs.read,
}


class Late(BaseException): ...  # it takes too long; no reader catches this


def numbered(about: str, noun: str, *, times: int) -> argparse.ArgumentParser:
    """Options of what makes each of many things from a seed and its number."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--times", type=int, default=times, help=noun)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help=f"the number of the first of the {noun}")
    return parser


def main() -> int:
    parser = numbered("damaged files through every reader", "files", times=50_000)
    parser.add_argument("--minutes", type=float, default=1e6, help="end after so long, however many files there were")
    asked = parser.parse_args()
    until = time.monotonic() + 60 * asked.minutes
    codes: Counter[int] = Counter()
    num_wrong = 0
    files = ((asked.seed, number, until) for number in range(asked.first, asked.first + asked.times))
    with ProcessPoolExecutor(2, initializer=_prepare) as pool:
        for code, wrong in pool.map(read_damaged, files, chunksize=250):
            codes[code] += 1
            num_wrong += bool(wrong)
            print("".join(f"{line}\n" for line in wrong), end="", flush=True)
    del codes[-1]
    print(f"{codes.total()} files of seed {asked.seed} ended with {dict(codes)}; {num_wrong} violations")
    return int(bool(num_wrong) or not codes)


def read_damaged(asked: tuple[int, int, float]) -> tuple[int, list[str]]:
    """Damage and read the file of this number: its exit code, and what was wrong; -1 where the time is over."""
    seed, number, until = asked
    if time.monotonic() >= until:
        return -1, []
    chance = random.Random(f"{seed}-{number}")
    subject = chance.choice(subjects())
    text = mutated(subject.files[subject.target], chance)
    command = chance.choice(subject.commands)
    with tempfile.TemporaryDirectory(prefix="gcprof-fuzz-") as folder, chdir(folder):
        code, what = look(command, {**subject.files, subject.target: text})
    if what:
        kept = ROOT / "build" / "fuzz" / f"{number}-{subject.target.replace('/', '-')}"
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(text)
    return code, [f"file {number}: {command}: {one}" for one in what]


def look(command: str, files: dict[str, bytes], *, times: float = 1.0) -> tuple[int, list[str]]:
    """Run a reader in the working folder with these files: its exit code, and what it did wrong."""
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(text)
    slow = PICTURE_SECONDS if "--kind" in command else SECONDS
    seconds = times * (PLAN_SECONDS if command.startswith("plan ") else slow)
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="surrogateescape") for _ in range(2))
    try:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        with redirect_stdout(out), redirect_stderr(err):
            first, *rest = shlex.split(command)
            code = answer([first, *rest]) if first not in READERS else (READERS[first](Path(*rest)), 0)[1]
    except UserError as error:
        code = error.exit_code
    except Late:
        return 124, [f"it takes more than {seconds:g} s"]
    except Exception as error:  # noqa: BLE001  # of a reader that no command is around
        return 70, [f"{type(error).__name__}: {error}"]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    err.flush()
    said = err.buffer.getvalue().decode(errors="replace")
    complaints = [line for line in said.splitlines() if line.startswith("gcprof: ")]
    wrong = [] if code in range(6) else [f"it ends with {code}: {complaints or said[-300:]}"]
    wrong += [f"it says {word!r}" for word in ("Traceback", "Warning:", "\x1b") if word in said]
    return code, wrong + [f"{len(complaints)} complaints"] * (len(complaints) > 1)


def _late(*_: object) -> None:
    raise Late


def _prepare() -> None:
    """In each worker: every reader once, so that what they import does not count; then the limits."""
    gc.set_threshold(GARBAGE)
    signal.signal(signal.SIGPROF, _late)
    warnings.simplefilter("always")
    for subject in {one.commands: one for one in subjects()}.values():
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            for command in subject.commands:
                look(command, subject.files, times=100.0)
    addresses = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (addresses + MEMORY_BYTES,) * 2)


# --- damage

HOSTILE = (  # as a file spells it
    "1e400", "NaN", "Infinity", "-1", "0.5", "1e-320", str(2**53 + 1), str(2**64), "9" * 5000, "0x10", "null", "true",
    "[]", "{}", '{"":{}}', "[1e300,-1e300]", "{a = 1}", "07:32:00", "",
    *map(json.dumps, (
        "", "segments:k=-1", "segments:k=" + "9" * 5000, "x:=,=", "fake:", "cuda:99999999999", "../../x", "/dev/zero",
        "=cmd()", "</script>", "[/]", "\\frac{", "%s %d {}", "{0.__class__}", "a\nb", "\0", "\x1b[31m", "\u202egnp",
        "\ud800", "x" * 10_000, "|", "2026-13-99T99:99:99Z", "ok", "out_of_memory", "invalid", "[1-3] 4", "[" * 500,
        "1-999999999", "\N{COMBINING ACUTE ACCENT}" * 50, "*", "(" * 200, "8|" * 50,
    )),
)  # fmt: skip
WORDS = (b'"', b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\0", b"\\", b"\xff", b"\xef\xbb\xbf", b"#", b"=", b"'''")
VALUE = re.compile(
    rb'(?P<key>"[^"\\\n]*": ?|^\w+ *= *)?(?P<own>"(?:[^"\\\n]|\\.)*"|-?\d[\d.e+-]*|true|false|null)', re.M
)


def mutated(text: bytes, chance: random.Random) -> bytes:
    """The file with one to three changes, by bytes or by what it says."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        text = (_other_bytes if chance.random() < 0.35 else _other_value)(text, chance)
    return text


def _other_bytes(text: bytes, chance: random.Random) -> bytes:
    """A bit turned, a part gone, twice or put in, or all of it in another encoding."""
    first = chance.randrange(len(text) + 1)
    last = min(len(text), first + chance.choice((1, 4, 40, 400)))
    turned = bytearray(text)
    if text:
        turned[chance.randrange(len(text))] ^= 1 << chance.randrange(8)
    words = text.decode(errors="replace")
    encoded = (words.encode("utf-16"), gzip.compress(text), b"\0" * len(text), b"", text.replace(b"\n", b"\r\n"))
    changed = (
        bytes(turned),
        text[:first],
        text[:first] + text[last:],
        text[:last] + text[first:last] * chance.choice((1, 50)) + text[last:],
        text[:first] + chance.choice(WORDS) * chance.choice((1, 3, 2000)) + text[first:],
        chance.choice(encoded),
    )
    return chance.choice(changed)


def _other_value(text: bytes, chance: random.Random) -> bytes:
    """A key or value of JSON or TOML replaced, deep, often, or twice."""
    values = list(VALUE.finditer(text))
    if not values:
        return _other_bytes(text, chance)
    found = chance.choice(values)
    key, own = found["key"] or b"", found["own"]
    hostile = chance.choice(HOSTILE).encode(errors="surrogatepass")
    depth = chance.choice((3, 70, 500, 100_000))
    between = b"\n" if b"=" in key else b","
    changed = (
        key + hostile,
        key + hostile,
        key + b"[" * depth + own + b"]" * depth,
        key + b'{"a":' * depth + own + b"}" * depth,
        key + b"[" + b",".join([own] * chance.choice((2, 200))) + b"]",
        key + own + between + key + hostile,
        hostile + key[-2:] + own,
    )
    return text[: found.start()] + chance.choice(changed) + text[found.end() :]


# --- the files that are damaged, and the commands that read each


class Subject(NamedTuple):
    """A file with what stands beside it, and the commands that read it."""

    target: str  # which of the files is damaged
    files: dict[str, bytes]
    commands: tuple[str, ...]


@cache
def subjects() -> tuple[Subject, ...]:
    """Every file that is damaged; the runs, which most commands read, three times."""
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        examples.run(Path(folder) / "troubled", examples.troubled())
        examples.run(Path(folder) / "batches", examples.batches())
        committed = (ROOT / "results/reference" / name for name in ("cpu/mnist-cnn", "predicted-t4/mnist-cnn"))
        for path in (Path(folder) / "troubled", Path(folder) / "batches", *committed):
            texts = {file: (path / file).read_bytes() for file in ("manifest.json", "trials.jsonl")}
            files = {f"results/{run}/{file}": text for run in ("run", "other") for file, text in texts.items()}
            runs += [Subject(f"results/run/{file}", files, OF_RUNS) for file in texts]
    others = [Subject("plan.json", {"plan.json": PLAN}, ("plan-file plan.json",))]
    of_sweeps = ("run --dry-run --device fake:h100 --config file.toml",)
    for folder, commands in (("configs", of_sweeps), ("configs/devices", ("rates file.toml",))):
        texts = [path.read_bytes() for path in sorted((ROOT / folder).glob("*.toml"))]
        others += [Subject("file.toml", {"file.toml": text}, commands) for text in texts]
    texts = [path.read_bytes() for path in sorted((ROOT / "tests/planning").glob("*.stages.json"))]
    others += [Subject("costs.json", {"costs.json": text}, OF_STAGES) for text in texts]
    return (*runs * 3, *others)


OF_RUNS = (
    "show run", "show run --samples", "show run --json", "show run --over batch_size", "show run --format md",
    "show run --over batch_size,strategy", "list --json", "validate run", "merge run other -o merged",
    *(f"export run --to {kind}" for kind in ("csv", "md", "latex", "json")),
    *(f"compare {pair} --format {kind}" for pair in ("run other", "other run") for kind in ("table", "json")),
    "compare run other --fail-on peak:>2%", "report run -o report.html",
    *(f"plot run --kind {kind} -o plot.svg" for kind in ("frontier", "memory", "time", "samples", "heat", "growth")),
)  # fmt: skip
OF_STAGES = (
    "plan --stages costs.json --frontier --json", "plan --stages costs.json --budget 60% --levels 2",
    "plan --stages costs.json --budget max", "plan --stages costs.json --budget 1GiB -o plan.json",
)  # fmt: skip
PLAN = encode_indented(
    plan_file.PlanFile(
        plan="1:matmul [2]",
        segments=(plan_file.Segment(blocks=("a",), save="matmul"), plan_file.Segment(blocks=("b",))),
        fingerprint=dict.fromkeys("ab", ("weight float32 64 x 3",)),
    )
)


if __name__ == "__main__":
    sys.exit(main())
