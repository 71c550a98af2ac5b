"""Work beside a process: what it gives, and that nothing is lost where it gives nothing."""

from __future__ import annotations

import os
import signal
from unittest.mock import Mock

import pytest

from profiler.predicting.forked_task import ForkedTask


def raises() -> int:
    raise ValueError("no")


def ends() -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


@pytest.mark.slow
def test_it_gives_what_the_work_returns_once():
    here = os.getpid()
    work = ForkedTask(lambda: (os.getpid(), "done"))

    pid, word = work.result()

    assert (pid != here, word) == (True, "done")
    assert work.result() is None


@pytest.mark.parametrize("work", [raises, ends, lambda: lambda: None], ids=["raises", "ends", "cannot be told"])
def test_it_gives_nothing_where_the_work_does_not_come_to_an_end(work):
    assert ForkedTask(work).result() is None


def test_it_gives_nothing_where_no_process_can_be_had(monkeypatch):
    monkeypatch.setattr(os, "fork", Mock(side_effect=BlockingIOError))

    assert ForkedTask(lambda: 1).result() is None
