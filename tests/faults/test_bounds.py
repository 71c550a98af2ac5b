"""Files that are made to cost time or memory: what reading takes is bounded, and grows with their size alone."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from profiler.cli import answer
from profiler.core import strict_files
from profiler.core.case import Choice, Trial, encode
from profiler.core.errors import UserError
from profiler.engines import child_outcome
from profiler.request import sweep
from profiler.runs import store
from profiler.views.tables import listing
from tests import examples, make
from tests.program import environment

SMALL_TRIAL = b'{"case":{"model":"","strategy":"","optimizer":"","batch_size":1,"device":""}}'
READ = """
from pathlib import Path
from profiler.runs import store
EDIT
store.read_manifest(Path("run"))
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


class CountedKey(str):
    """A key that counts how often it is compared."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedKey.comparisons += 1
        return str.__eq__(self, other)

    def __lt__(self, other: str) -> bool:
        CountedKey.comparisons += 1
        return str.__lt__(self, other)

    __hash__ = str.__hash__


@pytest.mark.slow
def test_bounds_a_key_that_is_there_twice_is_found_without_comparing_all_with_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(CountedKey, "comparisons", 0)
    keys = [*(CountedKey(f"{number:04}") for number in range(2000)), CountedKey("1999")]

    with pytest.raises(strict_files.Malformed, match="the key '1999' is there twice"):
        strict_files._object([(key, None) for key in keys])

    assert CountedKey.comparisons < 2001 * 15  # sorting takes 11 each; all with all are 4,000,000


def test_bounds_nothing_is_kept_of_what_is_looked_at():
    inner = strict_files._object([("a", "text"), ("b", None)])

    assert inner == []
    assert strict_files._object([("a", "text"), ("b", inner), ("c", ["text"])]) == [[], ["text"]]


def joined(unit: bytes, *, values: int) -> bytes:
    return b",".join([unit] * ((strict_files.JSON_VALUES - 1000) // values))


def numbered(unit: bytes) -> bytes:
    return b",".join(unit % number for number in range(strict_files.JSON_VALUES - 1000))


def hidden(text: bytes) -> Callable[[bytes], bytes]:
    """In a field that gcprof does not know."""
    return lambda manifest: manifest[:-1] + b',"more":' + text + b"}"


def in_place_of(old: bytes, text: bytes) -> Callable[[bytes], bytes]:
    return lambda manifest: manifest.replace(old, text)


HOSTILE: dict[str, Callable[[], Callable[[bytes], bytes]]] = {
    "trials": lambda: in_place_of(b'"plan":[]', b'"plan":[' + joined(SMALL_TRIAL, values=7) + b"]"),
    "digests": lambda: in_place_of(b'"sources":{}', b'"sources":{' + numbered(b'"%x":""') + b"}"),
    "lists": lambda: hidden(b"[" + joined(b"[[[[[[[[[[]]]]]]]]]]", values=11) + b"]"),
    "objects": lambda: hidden(b"[" + joined(b'{"a":[]}', values=3) + b"]"),
    "keys": lambda: hidden(b"{" + numbered(b'"%x":1') + b"}"),
    "strings": lambda: hidden(b"[" + joined(b'"ab"', values=1) + b"]"),
    "emoji": lambda: hidden(b'"' + b"a" * (strict_files.JSON_BYTES - 10_000) + "😀".encode() + b'"'),
}


def manifest_with(change: Callable[[bytes], bytes], folder: Path) -> None:
    examples.run(folder, [])
    (folder / "manifest.json").write_bytes(change(encode(store.load(folder).manifest)))


def reading_bytes(edit: str = "") -> int:
    """The most memory that a process takes which reads the manifest."""
    words = [sys.executable, "-c", READ.replace("EDIT", edit)]
    done = subprocess.run(words, env=environment(), capture_output=True, check=True, text=True)
    return int(done.stdout) << 10


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux's")
@pytest.mark.parametrize("kind", HOSTILE)
def test_bounds_a_manifest_at_the_bound_takes_no_more_memory_than_is_stated(kind: str, here: Path):
    manifest_with(HOSTILE[kind](), Path("run"))

    assert reading_bytes() < strict_files.MEMORY_BYTES


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux's")
def test_twin_bounds_where_contents_are_kept_it_takes_more(here: Path):
    manifest_with(HOSTILE["keys"](), Path("run"))

    kept = "from profiler.core import strict_files; strict_files._object = lambda pairs: dict(pairs)"
    assert reading_bytes(kept) > strict_files.MEMORY_BYTES


def test_bounds_the_manifest_of_100_000_trials_is_within_them():
    trials = 100_000
    record = make.record("segments:k=12345")
    text = encode(Trial(case=record.case))

    assert trials * len(text) * 1.3 < strict_files.JSON_BYTES  # with its indents
    assert trials * (text.count(b",") + text.count(b"{") + text.count(b"[") + 1) < strict_files.JSON_VALUES


def test_bounds_more_values_than_any_run_has_are_not_read(here: Path, monkeypatch: pytest.MonkeyPatch):
    examples.run(here / "run", [make.record("none")])
    monkeypatch.setattr(strict_files, "JSON_VALUES", 20)

    with pytest.raises(UserError, match=r"manifest\.json: it has more than 20 values") as refused:
        store.load(Path("run"))

    assert refused.value.exit_code == 4


def test_bounds_a_record_that_nobody_could_read_again_is_not_believed(monkeypatch: pytest.MonkeyPatch):
    record = make.record("none")
    monkeypatch.setattr(strict_files, "JSON_VALUES", 20)

    with pytest.raises(strict_files.Malformed, match="it has more than 20 values"):
        child_outcome._believed(Trial(case=record.case), [record], _Undamaged(), 0.0)


class _Undamaged:
    """A child that sent what it was to send."""

    damage = None
    messages: Sequence[Any] = ()


DEEP_TOML = {
    "a key of many parts": "a" + ".a" * 10_000 + " = 1",
    "a table of many parts": "[" + "a." * 10_000 + "a]",
    "quoted parts": '"a"' + " . 'a'" * 10_000 + " = 1",
    "in an inline table": "x = {a" + ".a" * 10_000 + " = 1}",
    "many such keys": "\n".join(f"k{number}" + ".a" * 9 + " = 1" for number in range(1000)),
}


@pytest.mark.parametrize("kind", DEEP_TOML)
def test_bounds_toml_that_is_nested_too_deep_is_not_parsed(kind: str, here: Path, monkeypatch: pytest.MonkeyPatch):
    Path("sweep.toml").write_text(DEEP_TOML[kind], encoding="utf-8")
    monkeypatch.setattr(tomllib, "loads", lambda text: pytest.fail("it was parsed"))

    with pytest.raises(UserError, match=r"sweep\.toml:1: this is not TOML: it is nested deeper than 8 levels"):
        sweep.read(Path("sweep.toml"))


def test_bounds_text_with_many_dots_is_no_long_key(here: Path):
    text = '# a.b.c.d.e.f.g.h.i.j\nx = "a.b.c.d.e.f.g.h.i.j"\ny = [1.5, 2.5, "a.b.c.d.e.f.g.h.i"]\na.b.c = 1\n'
    Path("some.toml").write_text(text, encoding="utf-8")

    _, document = strict_files.load_toml(Path("some.toml"), hint="")

    assert (document["x"], document["a"]) == ("a.b.c.d.e.f.g.h.i.j", {"b": {"c": 1}})


BAD_FOLDERS = {
    "memory": MemoryError(),
    "nesting": RecursionError(),
    "a lost disk": OSError(5, "Input/output error"),
    "damage": UserError("it is damaged"),
}


@pytest.mark.parametrize("kind", BAD_FOLDERS)
def test_bounds_one_bad_folder_costs_the_list_one_line(
    kind: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    for name in ("bad", "good"):
        examples.run(here / "results" / name, [make.record("none")])
    monkeypatch.setattr(listing, "load", partial(_load, error=BAD_FOLDERS[kind]))

    code = answer(["list"])

    out = capsys.readouterr().out
    assert (code, "unreadable" in out, "1/1" in out) == (0, True, True)


def _load(folder: Path, *, error: Exception) -> store.Run:
    if folder.name == "bad":
        raise error
    return store.load(folder)


def test_bounds_a_run_that_is_very_large_is_not_read_for_the_list(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    examples.run(here / "results" / "bad", [make.record("none")] * 3)
    examples.run(here / "results" / "good", [make.record("none")])
    monkeypatch.setattr(listing, "LISTED_BYTES", 2 * (here / "results/good/trials.jsonl").stat().st_size)

    code = answer(["list"])

    out = capsys.readouterr().out
    assert (code, "large" in out, "1/1" in out) == (0, True, True)


def test_bounds_an_option_given_twice_is_named():
    with pytest.raises(UserError, match="gives k twice"):
        _ = Choice("segments:" + ",".join([f"o{number}=1" for number in range(10)] + ["k=1", "k=2"])).options
