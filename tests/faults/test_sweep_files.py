"""Sweep files that are wrong (row 7): knows nothing of what a right one measures."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.cli import answer
from profiler.core.errors import UserError
from profiler.request import sweep
from profiler.request.spec import Request


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "sweep.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "told", "hint"),
    [
        ("\nsegmnts = 1\n", "sweep.toml:2: no key is called 'segmnts'", "did you mean 'segments'? the keys are model,"),
        ("rounds = 1\nversion = 2\n", "sweep.toml:2: no key is called 'version'", "the keys are model,"),
        ("seed = 1\nrounds = 'two'\n", "sweep.toml:2: rounds: Expected", "configs/"),
        ("segments = [1, true]\n", "sweep.toml:1: segments: true is neither a whole number nor a word", "[1, 2]"),
        ("seed = 1\nsegments = [1, 2.5]\n", "sweep.toml:2: segments: 2.5 is neither a whole", "[1, 2]"),
        ("batch_size = [[8]]\n", "sweep.toml:1: batch_size: [8] is neither a whole", "[1, 2]"),
        ("segments = [1979-05-27, 1]\n", 'sweep.toml:1: segments: "1979-05-27" is neither', "[1, 2]"),
        ("strategies = []\n", "sweep.toml:1: strategies: the list is empty", "['all', 'sqrt']"),
        ("[model]\nname = 'mlp'\n", "sweep.toml:1: model: Expected", "configs/"),
        ("rounds = 1\n\nmodel = = 1\n", "sweep.toml:3: this is not TOML", "key = value"),
        ("rounds = 1\nmodel = '", "sweep.toml:2: this is not TOML", "key = value"),
        (b"rounds = 1\nmodel = 'm\xfc'\n", "sweep.toml:2: this is not UTF-8", "UTF-8"),
        ("rounds = 1\n".encode("utf-16"), "sweep.toml:1: this is not UTF-8", "UTF-8"),
        ("model = " + "[" * 100_000, "sweep.toml:1: this is not TOML: maximum recursion depth", "key = value"),
    ],
    ids=[
        "key",
        "version",
        "type",
        "switch",
        "fraction",
        "list",
        "date",
        "none",
        "table",
        "syntax",
        "torn",
        "latin-1",
        "utf-16",
        "deep",
    ],
)
def test_fault_7_file_line_and_key_are_named(text, told: str, hint: str, here: Path, capsys: Any):
    path = written(here, text)

    assert answer(["run", "--config", path.name]) == 2

    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"gcprof: {told}")
    assert hint in second
    assert list(here.iterdir()) == [path]


@given(st.binary(max_size=60))
def test_fault_7_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes):
    path = written(tmp_path_factory.getbasetemp(), data)

    with suppress(UserError):
        assert isinstance(sweep.read(path), Request)
