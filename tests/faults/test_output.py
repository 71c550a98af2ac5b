"""What a trial prints: much, of every kind of bytes, with escapes, and like a result."""

from __future__ import annotations

import re
import unicodedata

import pytest

from profiler.engines.child import LOG_BYTES, TAIL_BYTES
from profiler.views.tables import progress
from tests.faults.trials import log_of, outcomes, run, trial

ODD = "\x1b[31mred\x1b]0;title\x07 \x9b2J\x00 plain"


def controls(lines: list[str]) -> set[str]:
    return {one for line in lines for one in line if unicodedata.category(one) in ("Cc", "Cf")}


@pytest.mark.nightly
@pytest.mark.parametrize("megabytes", [4, 1024])
def test_fault_20_a_trial_may_print_a_gigabyte_and_its_log_says_what_is_left_out(engine, megabytes):
    (record,) = engine.run([trial(f"spam,megabytes={megabytes}")])

    log = log_of(engine, record)
    left_out = int(re.search(rb"\n\[gcprof: (\d+) more bytes left out\]\n", log)[1])
    assert (record.outcome, record.case) == ("ok", trial(f"spam,megabytes={megabytes}").case)
    assert left_out >= (megabytes << 20) - LOG_BYTES - TAIL_BYTES  # torch's profiler prints, too
    assert len(log) < LOG_BYTES + TAIL_BYTES + 100


def test_fault_20_the_last_lines_are_harmless_and_few(tmp_path):
    (tmp_path / "log").write_text("".join(f"    line {number} {ODD}\n" for number in range(30)))

    lines = progress.last_lines(tmp_path / "log")

    assert lines == [f"    line {number} red 2J plain" for number in range(10, 30)]
    assert not controls(lines)


@pytest.mark.slow
def test_fault_20_what_looks_like_a_result_on_stdout_is_none(here, shared, capsys):
    code = run("spam,at=recompute", "all")

    out, err = capsys.readouterr()
    assert code == 0
    assert outcomes(here / "run") == {"none": "ok", "all": "ok"}
    assert "\x1b" not in out + err
