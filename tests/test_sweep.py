"""Sweep files are read strictly."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler import spec, sweep
from profiler.errors import UserError
from profiler.spec import Request

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.toml"))


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "sweep.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_there_are_the_configs_that_the_documentation_names():
    assert {path.stem for path in CONFIGS} >= {"quick", "mnist-cnn", "mlp", "gpu"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_a_plan(path):
    assert spec.plan(sweep.read(path), lambda word: "cuda:0").trials


def test_lists_and_numbers_are_read_as_on_the_command_line(tmp_path):
    path = written(tmp_path, 'segments = [1, 2]\nbatch_size = 8\nstrategies = ["segments:k=4"]\nkeep_grads = true\n')

    assert sweep.read(path) == Request(segments="1,2", batch_size="8", strategies="segments:k=4", keep_grads=True)


def test_a_byte_order_mark_is_no_harm(tmp_path):
    assert sweep.read(written(tmp_path, b"\xef\xbb\xbfrounds = 2\n")) == Request(rounds=2)


@pytest.mark.parametrize(
    ("text", "named", "hint"),
    [
        ("\nsegmnts = '1'\n", "sweep.toml:2: no key is called 'segmnts'", "did you mean 'segments'?"),
        ("[model]\nname = 'mlp'\n", "sweep.toml:1: model:", "configs/"),
        ("rounds = 'two'\n", "sweep.toml:1: rounds:", "configs/"),
        ("rounds = 1\nseed = 1.5\n", "sweep.toml:2: seed:", "configs/"),
        ("model = \n", "is not TOML", "key = value"),
        (b"\xff\xfe\x00", "is not UTF-8", "UTF-8"),
    ],
)
def test_what_cannot_be_read_is_named_by_file_line_and_key(tmp_path, text, named, hint):
    with pytest.raises(UserError) as caught:
        sweep.read(written(tmp_path, text))

    assert named in caught.value.message
    assert hint in caught.value.hint


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        sweep.read(tmp_path / "none.toml")


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(tmp_path_factory, data):
    path = written(tmp_path_factory.getbasetemp(), data)

    with suppress(UserError):
        assert isinstance(sweep.read(path), Request)
