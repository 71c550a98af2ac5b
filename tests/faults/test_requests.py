"""Words, sweep files, folders, devices and libraries that are wrong or missing: refused by name, before any work."""

import importlib.abc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from profiler.cli import answer
from profiler.core.errors import UserError
from profiler.runs import store
from profiler.views import export
from profiler.workflows import spec
from profiler.workflows.spec import Request


@given(st.text(max_size=20) | st.from_regex(r"[-0-9.,:xe ]{0,12}", fullmatch=True))
@example("1e9")
@example("٣")
def test_fault_1_any_text_is_whole_numbers_from_1_or_refused_by_name(text):
    try:
        _, *trials = spec.check(Request(model="mlp", segments=text), lambda word: "cpu").trials
    except UserError as refused:
        trials, told = [], str(refused)
    assert trials or told.startswith("--segments: ")
    options = [trial.case.strategy.options for trial in trials if trial.case.strategy != "none"]
    assert all(1 <= int(option["k"]) <= spec.LARGEST for option in options)


SWEEPS = {
    "key": ("\nsegmnts = 1\n", "sweep.toml:2: no key is called 'segmnts'"),
    "switch": ("segments = [1, true]\n", "sweep.toml:1: segments: the list is empty, or holds"),
    "syntax": ("rounds = 1\n\nmodel = = 1\n", "sweep.toml:3: this is not TOML"),
    "latin-1": (b"rounds = 1\nmodel = 'm\xfc'\n", "sweep.toml:2: this is not UTF-8"),
    "deep": ("model = " + "[" * 100_000, "sweep.toml:1: this is not TOML: maximum recursion depth"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("text", "told"), SWEEPS.values(), ids=SWEEPS)
def test_fault_7_file_line_and_key_are_named(text, told, here, capsys):
    (here / "sweep.toml").write_bytes(text if isinstance(text, bytes) else text.encode())

    assert answer(["run", "--config", "sweep.toml"]) == 2

    assert capsys.readouterr().err.startswith(f"gcprof: {told}")
    assert [path.name for path in here.iterdir()] == ["sweep.toml"]


@pytest.mark.parametrize(
    ("place", "code", "told"),
    [
        ("file", 2, "'file' is there already"),
        ("folder", 2, "'folder' is there already"),
        ("file/run", 74, "is not a folder that can be written to"),
    ],
)
def test_fault_37_a_bad_folder_is_refused_before_torch_is_imported(place, code, told, here, no_server, capsys):
    (here / "file").write_text("mine")
    (here / "folder").mkdir()

    assert answer(["run", "--model", "mlp", "-o", place]) == code

    assert told in capsys.readouterr().err
    assert sorted(path.name for path in here.rglob("*")) == ["file", "folder"]
    assert (here / "file").read_text() == "mine"


def test_fault_38_a_file_is_whole_or_as_it_was(tmp_path, monkeypatch):
    target = tmp_path / "table.csv"
    target.write_text("mine")

    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(Path, "open", lambda path, *mode: path.touch() or os.fdopen(full, "wb", buffering=0))
    with pytest.raises(UserError, match="No space left on device") as caught:
        export.write_whole(target, b"new", force=True)

    assert (caught.value.exit_code, caught.value.hint) == (74, "free some space")
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]
    monkeypatch.undo()
    assert target.read_text() == "mine"


class Broken(importlib.abc.MetaPathFinder):
    """Whoever imports matplotlib gets an error of another library."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError("numpy.core.multiarray failed to import")


def test_fault_60_a_run_without_matplotlib_is_measured_shown_and_kept(here, shared, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])

    words = "run --model mlp --segments 2 --device cpu --rounds 1 --samples 1 --warmup 0 -o run"
    assert answer(words.split()) == 0

    out, err = capsys.readouterr()
    assert "segments:k=2" in out
    assert "note: no picture was drawn: " in err
    assert [record.outcome for record in store.load(here / "run").records] == ["ok", "ok"]
    assert sorted(path.name for path in (here / "run" / "derived").iterdir()) == ["table.csv", "table.md"]
