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


@pytest.mark.slow
def test_the_package_holds_no_test_no_secret_and_no_absolute_path(tmp_path):
    with zipfile.ZipFile(tmp_path / "package.whl", "w") as wheel:
        for folder in ("profiler", "configs/published", "configs/devices"):
            for path in sorted((ROOT / folder).rglob("*")):
                name = path.relative_to(ROOT).as_posix()
                if path.is_file() and "__pycache__" not in name:
                    wheel.write(path, name if folder == "profiler" else f"profiler/{name}")

    assert wrong(tmp_path / "package.whl") == []


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("profiler/tests/test_one.py", "", "profiler/tests/test_one.py: a test"),
        ("profiler/conftest.py", "", "profiler/conftest.py: a test"),
        ("tests/make.py", "", "tests/make.py: no file of the package"),
        ("profiler/.env", "", "profiler/.env: no file of the package"),
        ("profiler/one.pkl", "", "profiler/one.pkl: no file of the package"),
        ("profiler/one.so", "", "profiler/one.so: no file of the package"),
        ("profiler/one.py", "DATA = '/home/ada/data'", "profiler/one.py: the path /home/ada/data"),
        ("profiler/one.json", '{"folder": "/Users/ada/x"}', "profiler/one.json: the path /Users/ada/x"),
        ("profiler/one.py", "DATA = r'C:\\Users'", "profiler/one.py: the path C:\\Users"),
        ("profiler/one.py", "KEY = 'AKIA" + "Q" * 16 + "'", "profiler/one.py: what looks like a secret"),
        ("profiler/one.toml", "password = 'correct-horse'", "profiler/one.toml: what looks like a secret"),
        ("gcprof-1.dist-info/METADATA", "ghp_" + "a" * 36, "gcprof-1.dist-info/METADATA: what looks like a secret"),
    ],
)
def test_what_does_not_belong_would_be_seen(name, text, found, tmp_path):
    with zipfile.ZipFile(tmp_path / "one.whl", "w") as wheel:
        wheel.writestr(name, text)

    assert wrong(tmp_path / "one.whl") == [found]
