"""Which files are mutated, and what is written about them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import scipy.stats

from tests import mutants
from tests.mutants import ROOMS, Row, Sample
from tests.quickest_first import ordered

ROOT = Path(__file__).parents[1]
STATUSES = {
    "profiler.planning.plan.x_flat__mutmut_1": "killed",
    "profiler.planning.plan.x_flat__mutmut_2": "survived",
    "profiler.planning.plan.x_runs__mutmut_1": "timeout",
    "profiler.planning.chain.xǁStageǁcost__mutmut_1": "no tests",
    "profiler.planning.chain.xǁStageǁcost__mutmut_2": "segfault",
}
SAMPLE = Sample(
    room="planning", files="all", mutants=1000, drawn=50, killed=40, survived=8, unreached=2, seed=3,
    date="2026-01-02", versions="one 1, two 2",
)  # fmt: skip


def rows() -> list[Row]:
    return mutants.counted("planning", STATUSES, date="2026-01-02", versions="one 1, two 2")


@pytest.mark.slow
def test_the_rooms_have_files_and_tests_that_are_there():
    assert all(mutants.files_of(room) for room in ROOMS.values())
    assert [name for room in ROOMS.values() for name in room.tests if not (ROOT / name).is_file()] == []


def test_no_file_is_in_two_rooms_and_the_whole_of_planning_and_analysis_is_in_one():
    files = [file for room in ROOMS.values() for file in mutants.files_of(room)]
    whole = [
        str(path.relative_to(ROOT))
        for name in ("planning", "analysis", "measuring/meters")
        for path in (ROOT / "profiler" / name).glob("*.py")
        if path.name != "__init__.py"
    ]

    assert len(files) == len(set(files))
    assert set(whole) - set(files) == set()


def test_words_choose_rooms_and_files():
    assert mutants.chosen(["planning"]) == {"planning": mutants.files_of(ROOMS["planning"])}
    assert mutants.chosen(["profiler/planning/plan.py"]) == {"planning": ["profiler/planning/plan.py"]}
    assert set(mutants.chosen([])) == set(ROOMS)
    with pytest.raises(SystemExit, match="neither a room"):
        mutants.chosen(["profiler/cli/run.py"])


def test_a_mutant_that_ran_into_the_limit_is_killed_and_one_that_crashed_is_not():
    chain, plan = rows()

    assert (chain.file, chain.mutants, chain.killed, chain.survived, chain.unreached) == (
        "profiler/planning/chain.py", 2, 0, 0, 1,
    )  # fmt: skip
    assert (plan.file, plan.mutants, plan.killed, plan.survived) == ("profiler/planning/plan.py", 3, 2, 1)
    assert mutants.total(rows()).startswith("2 of 5 mutants killed (40%), in 2 of ")


def test_the_page_is_read_as_it_was_written():
    for written in ((rows(), [SAMPLE]), (rows(), []), ([], [SAMPLE])):
        text = mutants.page(*written)

        assert mutants.parsed(text) == written
        assert mutants.page(*mutants.parsed(text)) == text


def test_the_committed_page_is_of_the_form_that_is_written_now():
    page = mutants.PAGE.read_text(encoding="utf-8")

    assert any(mutants.parsed(page))
    assert page.startswith(mutants.ABOUT)


def test_a_sample_counts_what_was_drawn_and_names_its_files():
    plan = "profiler/planning/plan.py"
    of = {"mutants": 100, "seed": 3, "date": "2026-01-02", "versions": "one 1"}

    part = mutants.sampled("planning", [plan], STATUSES, **of)
    whole = mutants.sampled("planning", mutants.files_of(ROOMS["planning"]), STATUSES, **of)

    assert (part.drawn, part.killed, part.survived, part.unreached) == (5, 2, 1, 1)
    assert (part.files, whole.files) == ("plan.py", "all")


def test_a_draw_is_the_same_for_a_seed_and_names_nothing_twice():
    names = [f"m{number}" for number in range(100)]

    draws = [mutants.drawn(names, 30, seed) for seed in (1, 1, 2)]

    assert draws[0] == draws[1] != draws[2]
    assert all(len(set(draw)) == 30 for draw in draws)
    assert sorted(mutants.drawn(names, 1000, 1)) == sorted(names)


def test_every_mutant_is_drawn_equally_often():
    counts = Counter(name for seed in range(2000) for name in mutants.drawn(list("abcde"), 2, seed))

    assert all(abs(count - 800) < 5 * (2000 * 0.4 * 0.6) ** 0.5 for count in counts.values())


@pytest.mark.parametrize(("hits", "draws"), [(0, 10), (10, 10), (51, 60), (1, 3), (200, 240)])
def test_the_interval_is_that_of_scipy(hits, draws):
    expected = scipy.stats.binomtest(hits, draws).proportion_ci(method="wilson")

    assert mutants.interval(hits, draws) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_an_estimate_says_of_how_many_and_how_sure_it_is():
    assert mutants.estimate(SAMPLE) == (
        "40 of 50 killed that were drawn from 1,000 mutants (80%, 95 % interval 67% to 89%), all files"
    )


@pytest.mark.slow
def test_the_mutants_of_a_file_are_named_as_mutmut_names_them(tmp_path, monkeypatch):
    monkeypatch.setattr(mutants, "WORK", tmp_path)
    mutants.prepare("planning", ["profiler/planning/plan.py"])

    names = mutants.mutants_of("planning", ["profiler/planning/plan.py"])

    assert len(set(names)) == len(names) > 100
    assert all(re.fullmatch(r"profiler\.planning\.plan\.\S+__mutmut_\d+", name) for name in names)


def test_a_process_that_a_test_starts_elsewhere_has_mutmuts_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(mutants, "WORK", tmp_path / "work")
    mutants.prepare("planning", ["profiler/planning/plan.py"])
    asks = "from mutmut.configuration import config; print(config().only_mutate)"

    told = subprocess.run(
        [sys.executable, "-c", asks],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "work" / "planning" / "mutants")},
        check=True,
        capture_output=True,
        text=True,
    )

    assert told.stdout == "['profiler/planning/plan.py']\n"


def test_the_quickest_tests_run_first_and_files_stay_together():
    seconds = {"slow.py::a": 9.0, "slow.py::b": 0.1, "quick.py::c": 2.0, "quick.py::d": 1.0}
    items = [SimpleNamespace(nodeid=name) for name in ("slow.py::a", "quick.py::c", "slow.py::b", "quick.py::d")]

    assert [item.nodeid for item in ordered(items, seconds)] == [
        "quick.py::d", "quick.py::c", "slow.py::b", "slow.py::a",
    ]  # fmt: skip


def test_the_settings_are_toml_that_names_the_files_and_the_tests():
    settings = tomllib.loads(mutants.settings("planning", ["profiler/planning/plan.py"]))["tool"]["mutmut"]

    assert settings["only_mutate"] == ["profiler/planning/plan.py"]
    assert settings["pytest_add_cli_args_test_selection"] == list(ROOMS["planning"].tests)
    assert {"profiler", "tests", *settings["also_copy"], "pyproject.toml"} == set(mutants.COPIED)
