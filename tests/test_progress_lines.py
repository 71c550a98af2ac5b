"""Lines while a run goes on: what went wrong brings the last that its trial printed."""

from __future__ import annotations

import io

import pytest

from profiler.analysis import progress
from profiler.views.tables.progress import Follow
from tests import make


def told(outcome: str, tmp_path) -> str:
    (tmp_path / "trial.log").write_text("warning: a loss of integers\n")
    file = io.StringIO()
    Follow(file).tell_log(make.failed("all", outcome, "why"), tmp_path / "trial.log")
    return file.getvalue()


@pytest.mark.parametrize("outcome", progress.FAILURES)
def test_of_every_failure_the_last_words_are_told(tmp_path, outcome: str):
    assert "a loss of integers" in told(outcome, tmp_path)


@pytest.mark.parametrize("outcome", ["skipped", "out_of_memory"])
def test_a_finding_is_no_failure(tmp_path, outcome: str):
    assert told(outcome, tmp_path) == ""
