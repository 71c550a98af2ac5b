"""What docs/promises.md promises, by the numbers of its table."""

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from profiler.cli import BROKEN_PIPE, INTERNAL, INTERRUPTED, UNWRITABLE
from profiler.core.case import Trial
from profiler.runs import store
from profiler.workflows import run as workflow
from tests import examples, make

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "profiler"
PAGE = (TESTS.parent / "docs" / "promises.md").read_text(encoding="utf-8")


def test_promise_2_a_record_is_on_disk_before_it_is_told(tmp_path, monkeypatch):
    """As many records as are told would a power cut leave each time that one is told."""
    engine: Any = SimpleNamespace(run=lambda trials, done=(): (make.record(case=trial.case) for trial in trials))
    examples.run(tmp_path / "run", [], more=tuple(Trial(case=make.case(name)) for name in ("none", "all", "sqrt")))
    path, safe, sync = tmp_path / "run" / "trials.jsonl", [0], os.fsync

    def noted(file: int) -> None:
        sync(file)
        if os.path.samestat(os.fstat(file), path.stat()):
            safe[0] = path.stat().st_size

    monkeypatch.setattr(os, "fsync", noted)
    told = workflow.run_owed(engine, store.load(tmp_path / "run"))
    assert [path.read_bytes()[: safe[0]].count(b"\n") for _ in told] == [1, 2, 3]


def test_promise_8_exit_codes_are_those_of_the_page():
    part = PAGE.partition("## Exit codes")[2].partition("## ")[0]
    listed = {int(code) for first in re.findall(r"^\| ([\d, ]+) \|", part, re.MULTILINE) for code in first.split(",")}
    sources = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    used = {int(code) for code in re.findall(r"exit_code=(\d+)", sources)}
    signals = {128 + number for number in (1, 2, 15)}

    assert used | {0, 1, 2, 5, INTERNAL, UNWRITABLE, INTERRUPTED, BROKEN_PIPE} | signals == listed
