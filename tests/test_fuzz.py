"""The fuzz finds what is planted, makes the same file again, and its commands read what it damages."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from profiler import engines
from profiler.core.errors import UserError
from tests import fuzz
from tests.fuzz_mutations import mutated
from tests.fuzz_subjects import OF_RUNS, subjects

NOBODY_WAITS = float("inf")
KNOWN = {one.name: one for one in subjects()}
RATES = next(one for one in subjects() if one.commands == ("rates file.toml",))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tests before count for the size of this process; the engine is the fuzz's own."""
    monkeypatch.setattr(fuzz, "_mib", lambda what: 100.0)
    monkeypatch.setitem(engines.TABLE, "local", "tests.fuzz:connect")


def planted(monkeypatch: pytest.MonkeyPatch, reader) -> list[str]:
    """What is found of files for GPUs where their reader is this one."""
    monkeypatch.setitem(fuzz.READERS, "rates", reader)
    monkeypatch.setattr(fuzz, "subjects", lambda: (RATES,))
    monkeypatch.setattr(fuzz, "_keep", lambda *words: None)
    return [one.what for one in fuzz.work((0, range(3), NOBODY_WAITS)).wrong]


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_damaged_files_end_in_codes_and_single_lines():
    found = fuzz.work((0, range(100, 108), NOBODY_WAITS))

    assert found.wrong == []
    assert found.codes.total() == 8
    assert set(found.codes) & {2, 4}


@pytest.mark.usefixtures("small")
def test_a_reader_that_refuses_in_its_own_words_is_right(monkeypatch):
    def refuse(path: Path) -> None:
        raise UserError("no", exit_code=4)

    assert planted(monkeypatch, refuse) == []


@pytest.mark.usefixtures("small")
def test_a_planted_error_is_found_in_every_file(monkeypatch):
    def stumble(path: Path) -> None:
        raise OverflowError("10^400")

    assert planted(monkeypatch, stumble) == ["it ends with 70: ['gcprof: OverflowError: 10^400']"] * 3


@pytest.mark.usefixtures("small")
def test_a_planted_hang_is_found(monkeypatch):
    monkeypatch.setattr(fuzz, "SECONDS", 0.01)

    def hang(path: Path) -> None:
        while True:
            path.exists()

    assert planted(monkeypatch, hang) == ["it takes more than 0.01 s"] * 3


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("said", ["Traceback (most recent call last)", "RuntimeWarning: overflow", "\x1b[31m"])
def test_a_planted_noise_is_found(said, monkeypatch):
    wrong = planted(monkeypatch, lambda path: print(said, file=sys.stderr))

    assert len(wrong) == 3


def test_memory_beyond_the_bound_is_found(monkeypatch):
    monkeypatch.setattr(fuzz, "_mib", lambda what: 600.0)

    assert fuzz.violations(0, "") == ["it takes 600 MiB"]


def test_more_than_one_complaint_is_found(monkeypatch):
    monkeypatch.setattr(fuzz, "_mib", lambda what: 100.0)

    assert fuzz.violations(2, "gcprof: a\nhint: b\n") == []
    assert fuzz.violations(2, "gcprof: a\ngcprof: b\n") == ["2 complaints"]


def test_a_number_makes_the_same_file_again():
    text = KNOWN["measured/trials.jsonl"].files["results/run/trials.jsonl"]

    first, second = (
        [mutated(text, random.Random(f"0-{number}"), kind="jsonl") for number in range(50)] for _ in range(2)
    )

    assert first == second
    assert len({*first, text}) > 45


def test_every_kind_of_damage_comes_up():
    text = b'{"a": 1, "b": [2.5, "words"], "c": {"d": null}}'

    made = b"\n".join(mutated(text, random.Random(number), kind="json") for number in range(2500))

    for kind in (b"1e400", b"NaN", b"-0", b"9" * 5000, b"[" * 500, b'{"a":' * 30, b"\\u202e", b"\0", b"\x1f\x8b"):
        assert kind in made, kind
    assert b'"a": 1,"a":' in made


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("command", [one for one in OF_RUNS if "--kind" not in one and "--resume" not in one])
def test_the_commands_read_what_is_sound(command, tmp_path, monkeypatch):
    subject = KNOWN["batches/manifest.json"]
    monkeypatch.chdir(tmp_path)
    fuzz.lay(subject, subject.files[subject.target])

    code, wrong = fuzz.look(command)

    assert (code, wrong) == (0, [])
