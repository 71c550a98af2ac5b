"""Which files are mutated, and what is written about them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests import mutants
from tests.mutants import ROOMS, Row

ROOT = Path(__file__).parents[1]
STATUSES = {
    "profiler.planning.plan.x_flat__mutmut_1": "killed",
    "profiler.planning.plan.x_flat__mutmut_2": "survived",
    "profiler.planning.plan.x_runs__mutmut_1": "timeout",
    "profiler.planning.chain.xǁStageǁcost__mutmut_1": "no tests",
    "profiler.planning.chain.xǁStageǁcost__mutmut_2": "segfault",
}


def rows() -> list[Row]:
    return mutants.counted("planning", STATUSES, date="2026-01-02", versions="one 1, two 2")


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
    text = mutants.page(rows())

    assert mutants.parsed(text) == rows()
    assert mutants.page(mutants.parsed(text)) == text


def test_the_committed_page_is_of_the_form_that_is_written_now():
    page = mutants.PAGE.read_text(encoding="utf-8")

    assert mutants.parsed(page)
    assert page.startswith(mutants.ABOUT)


def test_the_settings_are_toml_that_names_the_files_and_the_tests():
    settings = tomllib.loads(mutants.settings("planning", ["profiler/planning/plan.py"]))["tool"]["mutmut"]

    assert settings["only_mutate"] == ["profiler/planning/plan.py"]
    assert settings["pytest_add_cli_args_test_selection"] == list(ROOMS["planning"].tests)
    assert {"profiler", "tests", *settings["also_copy"], "pyproject.toml"} == set(mutants.COPIED)
