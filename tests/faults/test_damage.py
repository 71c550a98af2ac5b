"""Row 42: result files that are empty, garbage, deep, huge. Knows nothing of how they came to be so."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from profiler.cli import answer
from profiler.core.case import Choice, encode
from profiler.core.errors import UserError
from tests import examples, make

LINE = encode(make.record("all"))
DEEP = 1_000_000
LINES = {
    "nothing": b"",
    "zero bytes": b"\0" * 1000,
    "garbage": bytes(range(11, 256)),
    "UTF-16": LINE.decode().encode("utf-16"),
    "gzip": gzip.compress(b"\0" * 10_000_000).replace(b"\n", b" "),
    "deep lists": b"[" * DEEP,
    "deep objects": LINE[:-1] + b',"more":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "10^400": LINE.replace(b'"peak_bytes":104857600', b'"peak_bytes":1e400'),
    "400 digits": LINE.replace(b'"peak_bytes":104857600', b'"peak_bytes":1' + b"0" * 400),
    "10^300 seconds": LINE.replace(b'"step_seconds":[0.1,', b'"step_seconds":[1e300,'),
    "NaN": LINE.replace(b'"step_seconds":[0.1,', b'"step_seconds":[NaN,'),
    "infinity": LINE.replace(b'"step_seconds":[0.1,', b'"step_seconds":[-Infinity,'),
    "another type": LINE.replace(b'"round":1', b'"round":"1"'),
}
READERS = ("show", "export", "validate", "compare")


@pytest.fixture
def results(here: Path) -> Path:
    """A sound run, and one that tests damage; the commands run beside them."""
    for name in ("sound", "damaged"):
        examples.run(here / "results" / name, [make.record("none"), make.record("segments:k=2")])
    return here / "results"


def damage(results: Path, line: bytes) -> None:
    """Put a line between the two of a run."""
    path = results / "damaged" / "trials.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + line + b"\n" + second)


def told(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = answer(words)
    out, err = capsys.readouterr()
    return code, out + err


@pytest.mark.parametrize("kind", LINES)
def test_fault_42_a_damaged_line_is_named_by_file_and_number(kind, results, capsys):
    damage(results, LINES[kind])

    code, said = told(["show", "damaged"], capsys)

    assert LINES[kind] != LINE
    assert code == 4
    assert f"gcprof: {Path('results/damaged/trials.jsonl')}:2: " in said
    assert len(said.splitlines()) == 2  # and the hint
    assert max(map(len, said.splitlines())) < 300


@pytest.mark.parametrize("command", READERS)
def test_fault_42_every_reader_names_the_line_and_ends_with_4(command, results, capsys):
    damage(results, LINES["10^400"])

    code, said = told([command, "results/damaged", *(["results/sound"] if command == "compare" else [])], capsys)

    assert (code, "trials.jsonl:2: " in said) == (4, True)


def test_fault_42_an_option_given_twice_is_named():
    with pytest.raises(UserError, match="gives k twice"):
        _ = Choice("segments:" + ",".join([f"o{number}=1" for number in range(10)] + ["k=1", "k=2"])).options
