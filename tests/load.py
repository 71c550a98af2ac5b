"""Long runs: what a trial costs beside its own steps, and what is left behind: `python -m tests.load`.

One run through the runner, as `gcprof run` follows it, of many trials by an engine that has its records ready: it must
stay below 300 MiB, and cost at most 3 ms of the processor a trial, which other work on the machine hardly changes. Then
many tiny trials by the fork server, and many rehearsals by the one that has the hollow device: no process, descriptor
or file may be left that was not there before, shared memory, the hollow libraries' folder and the server's own memory
may not grow, and no log may tell of an abort. The last line is the summary; ends with 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from profiler.cli.output import Terminal
from profiler.core.case import Choice, Trial
from profiler.core.record import Record
from profiler.engines.local import Local, in_waves
from profiler.rehearsal.build import cache_folder
from profiler.runs import store
from profiler.runs.merge import KNOWN
from profiler.workflows.run import follow
from tests import examples, make
from tests.program import PATIENCE_SECONDS

ROUNDS = 5
MEMORY_BYTES, OVERHEAD_SECONDS = 300 << 20, 0.003
TORCHS_OWN = "torchinductor_"  # a cache for each user, which torch makes when it is imported first
SETTLED = 10  # rehearsals after which the server's memory is looked at first
SERVER_GROWTH_BYTES = 4 << 20  # of its private memory
ABORTS = ("terminate called", "Aborted", "Fatal Python error", "Segmentation fault", "core dumped", "CUDA error")


def main() -> int:
    parser = argparse.ArgumentParser(description="long runs: costs of a trial, and what is left behind")
    parser.add_argument("--trials", type=int, default=10_000, help="by an engine that has its records ready")
    parser.add_argument("--real", type=int, default=1000, help="tiny ones by the fork server")
    parser.add_argument("--rehearsed", type=int, default=500, help="tiny ones on the hollow device")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gcprof-load-") as folder:
        at = Path(folder)
        looks = [long_run(at / "long", asked.trials)] if asked.trials else []
        for device, number in {"cpu": asked.real, "rehearse:h100": asked.rehearsed}.items():
            looks += [real_run(at / device.partition(":")[0], number, device)] if number else []
    told, wrong = [text for text, _ in looks], [text for _, found in looks for text in found]
    for one in wrong:
        print(f"  {one}")
    print(f"{'; '.join(told)}; {len(wrong)} violations")
    return int(bool(wrong))


def long_run(folder: Path, number: int) -> tuple[str, list[str]]:
    """Follow a run of so many trials; what it cost, and what of that is wrong."""
    cases = [make.case("none"), *(make.case(f"segments:k={count}") for count in range(1, max(1, number // ROUNDS)))]
    plan = tuple(Trial(case=case, round=round_) for round_ in range(1, ROUNDS + 1) for case in cases)
    store.create(folder, plan=plan, command="gcprof run", environment=examples.ENVIRONMENT, sources={})

    def answered(trials: Iterable[Trial]) -> Iterator[Record]:
        return (make.record(case=trial.case, round=trial.round) for trial in trials)

    engine: Any = SimpleNamespace(run=lambda plan, done=(): in_waves(answered, plan, done))
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stderr(nowhere):
        began = time.process_time()
        follow(engine, store.load(folder), Terminal())
        spent = time.process_time() - began
    records = store.load(folder).records
    strange = [path.name for path in folder.iterdir() if path.name not in KNOWN]
    overhead, used = spent / len(records), _peak_bytes()
    text = f"{number:,} trials: {overhead * 1e3:.2f} ms of the processor each, {used >> 20} MiB"
    wrong = [f"{name} is left in the run folder" for name in strange]
    wrong += [f"{len(records)} records of {len(plan)}"] if len(records) != len(plan) else []
    return text, wrong + ([f"too much: {text}"] if overhead > OVERHEAD_SECONDS or used > MEMORY_BYTES else [])


def real_run(folder: Path, number: int, device: str) -> tuple[str, list[str]]:
    """Run so many tiny trials by one fork server; what was left behind."""
    rehearses = device != "cpu"
    case = make.case(model=Choice("mlp:depth=2,width=8"), batch_size=4, warmup=0, samples=1, device=device)
    passes = ("memory",) if rehearses else ("time",)
    trials = [Trial(case=case, round=round_, passes=passes) for round_ in range(1, number + 1)]
    (temporary := folder / "temporary").mkdir(parents=True)
    tempfile.tempdir, os.environ["TMPDIR"] = str(temporary), str(temporary)
    before, began = left(temporary), time.monotonic()
    with Local(stage_seconds=PATIENCE_SECONDS, logs=folder / "logs", rehearses=rehearses) as engine:
        records = list(engine.run(trials[:SETTLED]))
        server, held, files = left(temporary), _server_bytes(), _kept_files()
        records += engine.run(trials[SETTLED:])
        at_work, grown, more = left(temporary), _server_bytes() - held, sorted(_kept_files() - files)
    seconds = time.monotonic() - began
    peaks = {one.readings.peak_bytes for one in records if one.readings}
    more_left = (at_work - server) + (left(temporary) - before)
    wrong = [f"{number} {name} more are left" for name, number in more_left.items()]
    wrong += [f"{path} is left" for path in more]
    texts = {path.name: path.read_text(encoding="utf-8", errors="replace") for path in (folder / "logs").glob("*")}
    wrong += [f"{name}: {word}" for name, text in sorted(texts.items()) for word in ABORTS if word in text]
    wrong += [f"the server grew by {grown:,} bytes"] if grown > SERVER_GROWTH_BYTES else []
    wrong += [f"{len(records)} trials of {number}"] if len(records) != number else []
    wrong += [f"a trial is {one.outcome}: {one.detail}" for one in records if one.outcome != "ok"][:3]
    wrong += [f"trials of one step peak at {sorted(map(str, peaks))} bytes"] if len(peaks) > 1 else []
    text = f"{number:,} trials on {device} in {seconds:.0f} s, nothing left of {at_work['processes']} process"
    return f"{text}, whose {held >> 10:,} KiB grew by {grown >> 10:,} KiB", wrong


def left(temporary: Path) -> Counter[str]:
    """What this process has open, with all that it started, and what lies in the folder for temporary files."""
    started = psutil.Process().children(recursive=True)
    files = [path.name for path in temporary.iterdir() if not path.name.startswith(TORCHS_OWN)]
    descriptors = sum(one.num_fds() for one in (psutil.Process(), *started))
    return Counter({"descriptors": descriptors, "processes": len(started)} | dict.fromkeys(files, 1))


def _server_bytes() -> int:
    """Returns the memory that the fork server that was started last by this process has for itself."""
    server = max(psutil.Process().children(), key=lambda child: child.create_time())
    return int(server.memory_full_info().uss)


def _kept_files() -> set[Path]:
    """Returns what lies in shared memory and in the folder of the hollow device's libraries."""
    return {path for folder in (Path("/dev/shm"), cache_folder()) for path in folder.rglob("*")}


def _peak_bytes() -> int:
    """The largest size that this process had."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) << 10


if __name__ == "__main__":
    sys.exit(main())
