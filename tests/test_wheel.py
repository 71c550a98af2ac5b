"""The wheel holds the package and no more: no test, no secret, no path of the machine that built it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.wheel import wrong

ROOT = Path(__file__).parents[1]


@pytest.mark.nightly
def test_the_wheel_holds_no_test_no_secret_and_no_absolute_path(tmp_path):
    builders = pytest.importorskip("hatchling.builders.wheel")
    (path,) = builders.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])

    assert wrong(Path(path)) == []
    with zipfile.ZipFile(path) as wheel:
        assert {"profiler/__init__.py", "profiler/configs/devices/t4.toml"} <= set(wheel.namelist())
