"""Row 42: result files that are empty, garbage, deep, huge. Knows nothing of how they came to be so."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from profiler.cli import answer
from profiler.core import strict_files
from profiler.core.case import encode
from profiler.core.errors import UserError
from profiler.runs import store
from profiler.runs.reading import Shared
from tests import examples, make
from tests.program import environment

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
    "deeper than the limit": LINE[:-1] + b',"more":' + b"[" * 70 + b"]" * 70 + b"}",
    "a key twice": LINE.replace(b'"round":1', b'"round":1,"round":1'),
    "an unknown key twice": LINE[:-1] + b',"more":{"a":1,"a":1}}',
    "10^400": LINE.replace(b'"peak_bytes":104857600', b'"peak_bytes":1e400'),
    "400 digits": LINE.replace(b'"peak_bytes":104857600', b'"peak_bytes":1' + b"0" * 400),
    "10^300 seconds": LINE.replace(b'"step_seconds":[0.1,', b'"step_seconds":[1e300,'),
    "an unknown 10^400": LINE[:-1] + b',"more":1e400}',
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


@pytest.mark.parametrize("kind", LINES)
def test_fault_42_a_damaged_manifest_is_named(kind, results, capsys):
    (results / "damaged" / "manifest.json").write_bytes(LINES[kind])

    code, said = told(["show", "damaged"], capsys)

    assert (code, "results/damaged/manifest.json: " in said) == (4, True)


@pytest.mark.parametrize("kind", LINES)
def test_fault_42_the_other_runs_and_the_other_lines_are_still_used(kind, results, capsys):
    damage(results, LINES[kind])

    listed, seen = told(["list"], capsys)
    shown, _ = told(["show", "sound"], capsys)
    _, found = told(["validate", "results/damaged"], capsys)

    assert (listed, shown) == (0, 0)
    assert "unreadable" in seen
    assert "2/2" in seen
    assert "2 records, damaged in 1 place" in found


def test_fault_42_a_tail_that_was_never_a_record_is_no_torn_one(results):
    path = results / "damaged" / "trials.jsonl"
    path.write_bytes(path.read_bytes() + gzip.compress(LINE).replace(b"\n", b" "))

    with pytest.raises(UserError, match=r"trials\.jsonl:3: ") as caught:
        store.load(results / "damaged")

    assert caught.value.exit_code == 4


def test_fault_42_a_line_is_read_as_far_as_the_longest_may_be(results, monkeypatch):
    monkeypatch.setattr(strict_files, "LINE_BYTES", 4 * len(LINE))
    damage(results, b"x" * (10 * len(LINE)))

    (*_, last) = store.documents(results / "damaged")

    assert [len(line) for _, line in store.documents(results / "damaged")][2] == 4 * len(LINE) + 1
    assert last == (f"{results / 'damaged' / 'trials.jsonl'}:3", encode(make.record("segments:k=2")))
    with pytest.raises(UserError, match=r":2: the line is longer than"):
        store.load(results / "damaged")


def test_fault_42_what_has_no_end_is_not_begun(results, capsys):
    path = results / "damaged" / "trials.jsonl"
    path.unlink()
    path.symlink_to("/dev/zero")

    code, said = told(["show", "damaged"], capsys)

    assert (code, "trials.jsonl': it is a link, not a regular file" in said) == (4, True)


def test_fault_42_a_document_larger_than_any_is_not_read(results, monkeypatch):
    monkeypatch.setattr(strict_files, "JSON_BYTES", 100)

    with pytest.raises(UserError, match=r"manifest\.json: it is larger than"):
        store.load(results / "damaged")


SMALL = """
import resource, sys
from profiler.core import strict_files
from profiler.cli import answer
EDIT
answer(["validate", "results/sound"])
size = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) << 10
resource.setrlimit(resource.RLIMIT_AS, (size + (200 << 20),) * 2)
sys.exit(answer(["validate", "results/damaged"]))
"""


def in_little_memory(edit: str = "") -> int:
    """The exit code of a reader that may take 200 MiB for a line of zeros of 4 GiB, which take no room on disk."""
    with Path("results/damaged/trials.jsonl").open("ab") as file:
        file.truncate(4 << 30)
    code = SMALL.replace("EDIT", edit)
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, check=False)
    return done.returncode


@pytest.mark.nightly
def test_fault_42_memory_is_bounded(results):
    assert in_little_memory() == 4


@pytest.mark.slow
def test_twin_42_without_a_bound_of_lines_a_small_machine_would_not_read_it(results):
    assert in_little_memory("strict_files.LINE_BYTES = 1 << 40") == 70


LENIENT = ("deeper than the limit", "a key twice", "an unknown key twice", "an unknown 10^400")


@pytest.mark.parametrize("kind", LENIENT)
def test_twin_42_without_the_strict_look_it_would_pass(kind, results, monkeypatch, capsys):
    monkeypatch.setattr(strict_files, "check_json", lambda text: None)
    damage(results, LINES[kind])

    assert told(["show", "damaged"], capsys)[0] == 0


def test_twin_42_a_number_that_came_past_the_bounds_would_be_a_fault_of_ours(results, monkeypatch, capsys):
    huge, read = make.record("all", peak=10**400), Shared.read
    monkeypatch.setattr(Shared, "read", lambda self, line, where: huge if line == b"huge" else read(self, line, where))
    damage(results, b"huge")

    assert told(["show", "damaged"], capsys)[0] == 70
