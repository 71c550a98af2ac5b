"""A Ray cluster of two nodes on this machine: what of a sweep is there after one is killed, and what the driver costs.

`just bench-ray`. First a run of many small real cases through the runner; one node is killed while it is at work. Every
planned record must be there exactly once, and ok. Then the driver's cost: trials whose task answers at once with a
record that is ready, through the engine and the runner into a run folder, against as many bare tasks of the same
arguments, answer and resources, sent and gathered by Ray alone, in turns in the same process. Fails where the median of
the pairs is more than 20 ms a case, or a record is lost or doubled. The last line is the summary.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import psutil

from profiler.core.case import Choice, Trial, decode, encode
from profiler.runs import store
from profiler.workflows import owed_trials
from tests import examples, make
from tests.ray_nodes import Nodes, await_, raylet

MOST_SECONDS = 0.020
WARM = 20  # trials before the first pair, which start the workers
TAIL = ("time",)


def main() -> int:
    parser = argparse.ArgumentParser(description="a Ray cluster: a killed node, and the driver's cost")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=5)
    asked = parser.parse_args()
    nodes = Nodes()
    try:
        with tempfile.TemporaryDirectory(prefix="gcprof-ray-") as folder:
            told, wrong = killed(nodes, Path(folder) / "killed", asked.cases)
            cost, slow = costs(nodes, Path(folder), asked.cases, asked.pairs)
    finally:
        nodes.close()
    for one in (*wrong, *slow):
        print(f"  {one}")
    print(f"{told}; {cost}; {len(wrong) + len(slow)} violations")
    return int(bool(wrong or slow))


def killed(nodes: Nodes, folder: Path, number: int) -> tuple[str, list[str]]:
    """A sweep of so many cases; the second node dies when a quarter is done and it is at work."""
    from profiler import engines

    plan = planned(number, passes=("memory", "time"))
    store.create(folder, plan=plan, command="gcprof run", environment=examples.ENVIRONMENT, sources={})
    at: list[int] = []

    def kill() -> None:
        path = folder / "trials.jsonl"
        await_(lambda: path.read_bytes().count(b"\n") >= number // 4, "a quarter is done")
        await_(lambda: at_work(raylet(nodes.other)), "the node is at work")
        nodes.kill(nodes.other)
        at.append(path.read_bytes().count(b"\n"))

    thread = threading.Thread(target=kill)
    thread.start()
    with engines.connect(nodes.engine, stage_seconds=60.0) as engine:
        for _ in owed_trials.run_owed(engine, store.load(folder)):
            pass
    thread.join()
    records = store.load(folder).records
    nodes.other = nodes.add()
    return f"{number} cases, a node killed at work after {at[0]} records", violations(records, plan)


def at_work(node: int) -> bool:
    """Whether a task runs below that raylet: Ray writes it into the title of its worker."""
    return any("run_trial" in " ".join(_words(one)) for one in psutil.Process(node).children(recursive=True))


def violations(records: Any, plan: tuple[Trial, ...]) -> list[str]:
    """What is lost, doubled or not ok."""
    times = Counter((one.case, one.round) for one in records)
    owed = [f"{one.case.model} is lost" for one in plan if (one.case, one.round) not in times]
    wrong = owed + [f"{case.model} is there {n} times" for (case, _), n in times.items() if n > 1]
    return wrong + [f"{one.case.model} is {one.outcome}: {one.detail}" for one in records if one.outcome != "ok"]


def costs(nodes: Nodes, folder: Path, number: int, pairs: int) -> tuple[str, list[str]]:
    """What the driver takes for a case beyond what Ray takes for a task of the same shape."""
    import ray

    from profiler import engines

    plan = planned(number, passes=TAIL)
    with engines.connect(nodes.engine, stage_seconds=60.0) as engine:
        engine._run = ray.remote(max_retries=0, max_calls=0)(ready)  # type: ignore[attr-defined]
        list(engine.run(plan[:WARM]))
        found = []
        for at in range(pairs):
            both = {
                "whole": lambda at=at: through(engine, folder / str(at), plan),
                "bare": lambda: bare(engine, plan),
            }
            order = ("whole", "bare") if at % 2 else ("bare", "whole")
            spent = {name: seconds(both[name]) / number for name in order}
            found.append(spent["whole"] - spent["bare"])
            print(f"a case {spent['whole'] * 1e3:.2f} ms, a bare task {spent['bare'] * 1e3:.2f} ms", flush=True)
    beyond = median(found)
    slow = [f"the driver takes {beyond * 1e3:.1f} ms a case beyond Ray's own"] if beyond > MOST_SECONDS else []
    return f"the driver: {beyond * 1e3:.2f} ms a case beyond Ray's own (median of {pairs} pairs)", slow


def through(engine: Any, folder: Path, plan: tuple[Trial, ...]) -> None:
    """All through engine and runner; every record is synced to disk."""
    store.create(folder, plan=plan, command="gcprof run", environment=examples.ENVIRONMENT, sources={})
    assert sum(1 for _ in owed_trials.run_owed(engine, store.load(folder))) == len(plan)


def bare(engine: Any, plan: tuple[Trial, ...]) -> None:
    """The same tasks, by Ray alone."""
    import ray

    task = engine._run.options(**engine._needs("cpu"))
    waiting = [task.remote(encode(trial), **engine._on_node) for trial in plan]
    while waiting:
        (done,), waiting = ray.wait(waiting, num_returns=1)
        ray.get(done)


def ready(request: bytes, **server: Any) -> tuple[bytes, bytes]:
    """On a node: a record of the trial that nobody measured."""
    trial = decode(request, Trial)
    return encode(make.record(case=trial.case, round=trial.round)), b""


def planned(number: int, *, passes: tuple[str, ...]) -> tuple[Trial, ...]:
    """Baselines of so many models, each of which needs none of the others."""
    fields = {"batch_size": 4, "warmup": 0, "samples": 1}
    models = [Choice(f"mlp:depth=2,width={8 + at}") for at in range(number)]
    return tuple(Trial(case=make.case(model=model, **fields), passes=passes) for model in models)


def seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it ended meanwhile
        return []


if __name__ == "__main__":
    sys.exit(main())
