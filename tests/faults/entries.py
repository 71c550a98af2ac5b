"""What children of a fork server do in tests, instead of a trial: knows nothing of torch."""

from __future__ import annotations

import os
import signal

from profiler.core.case import Trial, decode


def end(text: str, channel: int) -> None:
    """End without a result; under `all`, kill the server before."""
    (trial,) = decode(text, tuple[Trial, ...])
    if trial.case.strategy == "all":
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()  # until the system ends this process too
