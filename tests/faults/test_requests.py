"""Words, sweep files, folders, devices and libraries that are wrong or missing: refused by name, before any work."""

import importlib.abc
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from profiler.cli import answer
from profiler.core.errors import UserError
from profiler.request import spec
from profiler.request.spec import CheckedRequest, Request
from profiler.runs import store
from profiler.views import export
from tests import examples
from tests.program import PATIENCE_SECONDS, environment

QUICK = ("--device", "cpu", "--rounds", "1", "--samples", "1", "--warmup", "0")
RUN = ("run", "--model", "mlp", "--segments", "2", *QUICK, "-o", "run")


def outcomes(folder: Path) -> list[str]:
    return [record.outcome for record in store.load(folder).records]


# --- words


def planned(**asked: Any) -> CheckedRequest:
    return spec.check(Request(model="mlp", **asked), lambda word: "cpu")


@given(st.text(max_size=20) | st.from_regex(r"[-0-9.,:xe ]{0,12}", fullmatch=True))
@example("1e9")
@example("٣")
def test_fault_1_any_text_is_whole_numbers_from_1_or_refused_by_name(text):
    with suppress(UserError):
        choices = [trial.case.strategy for trial in planned(segments=text).trials if trial.case.strategy != "none"]
        assert all(1 <= int(choice.options["k"]) <= spec.LARGEST for choice in choices)
        return
    with pytest.raises(UserError, match=r"^--segments: ") as caught:
        planned(segments=text)
    assert caught.value.exit_code == 2


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("word", ["cuda", "cuda:0"])
def test_fault_8_a_cuda_device_that_is_not_there_is_exit_code_3(word, here, shared, capsys):
    assert answer(["run", "--model", "mlp", "--device", word]) == 3

    assert f"there is no '{word}': torch sees no CUDA device here" in capsys.readouterr().err
    assert list(here.iterdir()) == []


# --- sweep files

SWEEPS = {
    "key": ("\nsegmnts = 1\n", "sweep.toml:2: no key is called 'segmnts'"),
    "version": ("rounds = 1\nversion = 2\n", "sweep.toml:2: no key is called 'version'"),
    "type": ("seed = 1\nrounds = 'two'\n", "sweep.toml:2: rounds: Expected"),
    "switch": ("segments = [1, true]\n", "sweep.toml:1: segments: the list is empty, or holds"),
    "fraction": ("seed = 1\nsegments = [1, 2.5]\n", "sweep.toml:2: segments: the list is empty, or holds"),
    "none": ("strategies = []\n", "sweep.toml:1: strategies: the list is empty"),
    "table": ("[model]\nname = 'mlp'\n", "sweep.toml:1: model: Expected"),
    "syntax": ("rounds = 1\n\nmodel = = 1\n", "sweep.toml:3: this is not TOML"),
    "torn": ("rounds = 1\nmodel = '", "sweep.toml:2: this is not TOML"),
    "latin-1": (b"rounds = 1\nmodel = 'm\xfc'\n", "sweep.toml:2: this is not UTF-8"),
    "deep": ("model = " + "[" * 100_000, "sweep.toml:1: this is not TOML: maximum recursion depth"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("text", "told"), SWEEPS.values(), ids=SWEEPS)
def test_fault_7_file_line_and_key_are_named(text, told, here, capsys):
    (here / "sweep.toml").write_bytes(text if isinstance(text, bytes) else text.encode())

    assert answer(["run", "--config", "sweep.toml"]) == 2

    first, hint = capsys.readouterr().err.splitlines()
    assert first.startswith(f"gcprof: {told}")
    assert hint.startswith("hint: ")
    assert [path.name for path in here.iterdir()] == ["sweep.toml"]


@given(st.binary(max_size=60))
def test_fault_7_any_bytes_are_read_or_refused(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "sweep.toml"
    path.write_bytes(data)

    with suppress(UserError):
        assert isinstance(spec.read_sweep(path), Request)


# --- folders and files that are there already, or cannot be written


@pytest.mark.parametrize(
    ("place", "code", "told"),
    [
        ("file", 2, "'file' is there already"),
        ("folder", 2, "'folder' is there already"),
        (".", 2, "'.' is there already"),
        ("file/run", 74, "is not a folder that can be written to"),
        ("x" * 300, 74, "File name too long"),  # a name may have 255 bytes
    ],
    ids=["file", "folder", "here", "below a file", "long"],
)
def test_fault_37_a_bad_folder_is_refused_before_torch_is_imported(place, code, told, here, no_server, capsys):
    (here / "file").write_text("mine")
    (here / "folder").mkdir()

    assert answer(["run", "--model", "mlp", "-o", place]) == code

    assert told in capsys.readouterr().err
    assert sorted(path.name for path in here.rglob("*")) == ["file", "folder"]
    assert (here / "file").read_text() == "mine"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["export run --to csv", "export run --to json", "plot run", "report run"])
def test_fault_38_what_is_there_stays_until_force_is_given(command, here, capsys):
    examples.run(here / "run", examples.sweep((2, 4)))
    target = Path("mine.png" if command == "plot run" else "mine")
    target.write_text("mine")
    words = [*command.split(), "-o", str(target)]

    assert (answer(words), target.read_text()) == (2, "mine")
    assert "overwrite it with --force" in capsys.readouterr().err
    assert answer([*words, "--force"]) == 0
    assert target.read_bytes() not in (b"mine", b"")


def full(path: Path, *mode: str) -> Any:
    """Opened, but it takes nothing."""
    path.touch()
    return open("/dev/full", "wb", buffering=0)


def test_fault_38_a_file_is_whole_or_as_it_was(tmp_path, monkeypatch):
    target = tmp_path / "table.csv"
    target.write_text("mine")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(UserError, match="No space left on device") as caught:
        export.write_whole(target, b"new", force=True)

    assert (caught.value.exit_code, caught.value.hint) == (74, "free some space")
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]
    monkeypatch.undo()
    assert target.read_text() == "mine"


@pytest.mark.parametrize("words", ["plan mlp --budget 60%", "stages mlp", "timeline mlp"])
def test_fault_38_a_folder_that_is_not_there_is_told_before_any_work(here, no_server, capsys, words):
    assert answer([*words.split(), "-o", "missing/file.json"]) == 74

    assert "cannot write 'missing/file.json'" in capsys.readouterr().err


# --- libraries and machines that lack something


class Broken(importlib.abc.MetaPathFinder):
    """Whoever imports matplotlib gets the error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == "matplotlib":
            raise self._error


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib"),
        ImportError("numpy.core.multiarray failed to import"),
    ],
    ids=["missing", "binary"],
)
def test_fault_60_a_run_without_matplotlib_is_measured_shown_and_kept(error, here, shared, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Broken(error), *sys.meta_path])

    assert answer(RUN) == 0

    out, err = capsys.readouterr()
    assert "segments:k=2" in out
    assert "note: no picture was drawn: " in err
    assert outcomes(here / "run") == ["ok", "ok"]
    assert sorted(path.name for path in (here / "run" / "derived").iterdir()) == ["table.csv", "table.md"]


BARE = (  # in sitecustomize.py: a machine without users, where temporary files have no place but the folder at hand
    "import os, pwd, tempfile\n"
    "def nobody(*_): raise KeyError('getpwuid(): uid not found')\n"
    "pwd.getpwuid = nobody\n"
    "tempfile._candidate_tempdir_list = lambda: ['/proc/nowhere', os.getcwd()]\n"
)
SCRIPT = f"from profiler.cli import answer\nraise SystemExit(answer({RUN!r}))\n"


def python(*command: str, cwd: Path, env: dict[str, str], text: str | None = None) -> None:
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=env, input=text, capture_output=True, text=True,
        timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert outcomes(cwd / "run") == ["ok", "ok"]


@pytest.mark.nightly
def test_fault_59_a_run_needs_nothing_of_the_machine(here):
    """No PATH, no HOME, no USER, no /tmp: nothing but Python."""
    (here / "site").mkdir()
    (here / "site" / "sitecustomize.py").write_text(BARE)
    path = os.pathsep.join([str(here / "site"), environment()["PYTHONPATH"]])

    python("-m", "profiler", *RUN, cwd=here, env={"PYTHONPATH": path, "PATH": ""})


@pytest.mark.nightly
def test_fault_63_trials_run_in_a_program_from_stdin_without_a_guard(here):
    python("-", cwd=here, env=environment(), text=SCRIPT)
