"""Sweep files are read strictly."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.core.errors import UserError
from profiler.request import spec, sweep
from profiler.request.spec import Request

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.toml"))


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "sweep.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_there_are_the_configs_that_the_documentation_names():
    assert {path.stem for path in CONFIGS} >= {"quick", "mnist-cnn", "mlp"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_a_plan(path):
    assert spec.check(sweep.read(path), lambda word: "cuda:0").trials


def test_lists_and_numbers_are_read_as_on_the_command_line(tmp_path):
    path = written(tmp_path, 'segments = [1, 2]\nbatch_size = 8\nstrategies = ["segments:k=4"]\nkeep_grads = true\n')

    assert sweep.read(path) == Request(segments="1,2", batch_size="8", strategies="segments:k=4", keep_grads=True)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        sweep.read(tmp_path / "none.toml")
