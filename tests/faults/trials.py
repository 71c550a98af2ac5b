"""Trials of the model that goes wrong, and the same ones without a process each. Knows nothing of rows."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from profiler.cli import answer
from profiler.core.case import Choice, Trial, decode
from profiler.engines.worker import tell
from profiler.runs import store
from tests import make
from tests.program import PATIENCE_SECONDS

QUICK = ("--device", "cpu", "--rounds", "1", "--samples", "1", "--warmup", "0", "-o", "run")


def trial(kind: str = "fine", strategy: str = "none", **fields) -> Trial:
    """A short one; the kind may have more options: `oom,at=recompute`."""
    case = make.case(strategy, model=Choice(f"tests.faulty:build:kind={kind}"), batch_size=4, samples=1, warmup=0)
    return Trial(case=case, **fields)


def run(kind: str, strategies: str, *more: str) -> int:
    """`gcprof run` into the folder `run`; its exit code."""
    return answer(["run", "--model", f"tests.faulty:build:kind={kind}", "--strategies", strategies, *QUICK, *more])


def outcomes(folder: Path) -> dict[str, str]:
    return {str(record.case.strategy): record.outcome for record in store.load(folder).records}


def gone(pids: set[int]) -> bool:
    """Whether they end, given time; nothing waits so long unless it is broken."""
    _, alive = psutil.wait_procs(
        [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=PATIENCE_SECONDS
    )
    return not alive


def imported(module: str, channel: int) -> None:
    """Runs in the child: whether the server gave it the module."""
    tell(channel, {"is_there": module in sys.modules})


def escape(request: str, channel: int) -> None:
    """Runs in the child: leaves a process in a session of its own."""
    words = [sys.executable, "-c", "import time; time.sleep(3600)"]
    tell(channel, {"pid": subprocess.Popen(words, start_new_session=True).pid})
    os._exit(0)


def end(request: str, channel: int) -> None:
    """End without a result; under `all`, kill the server before."""
    (trial,) = decode(request, tuple[Trial, ...])
    if trial.case.strategy == "all":
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()  # until the system ends this process too
