"""The record of a trial that gave none itself: what became of it, and with what it was asked for."""

from __future__ import annotations

import os
import sys

from profiler import __version__
from profiler.core.case import Trial
from profiler.core.record import Environment, Outcome, Record


def lost(trial: Trial, outcome: Outcome, detail: str) -> Record:
    """A record without readings."""
    system = f"{os.uname().sysname} {os.uname().machine}"
    environment = Environment(gcprof=__version__, python=sys.version.split()[0], system=system)
    return Record(case=trial.case, round=trial.round, outcome=outcome, detail=detail, environment=environment)
