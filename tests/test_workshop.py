"""Workflows and `.ci/run` run recipes that are there, and actions are pinned with no more rights than they need."""

import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.wheel import wrong

ROOT = Path(__file__).parents[1]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_bytes()) for path in sorted(ROOT.glob(".github/workflows/*.yml"))}


def steps(name: str) -> list[dict[str, Any]]:
    return [step for job in WORKFLOWS[name]["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_and_may_do_no_more_than_they_must(name):
    used = [step["uses"] for step in steps(name) if "uses" in step]

    assert [one for one in used if not re.fullmatch(r"[\w./-]+@(v\d+\.\d+\.\d+|[0-9a-f]{40})", one)] == []
    assert all(
        step["with"]["persist-credentials"] is False for step in steps(name) if "checkout" in step.get("uses", "")
    )
    assert WORKFLOWS[name]["permissions"] == ({} if name == "release" else {"contents": "read"})
    granted = {job: one["permissions"] for job, one in WORKFLOWS[name]["jobs"].items() if "permissions" in one}
    assert granted == ({"build": {"contents": "read"}, "publish": {"id-token": "write"}} if name == "release" else {})
    assert all("timeout-minutes" in job for job in WORKFLOWS[name]["jobs"].values())


# --- the wheel


@pytest.mark.nightly
def test_the_wheel_holds_no_test_no_secret_and_no_absolute_path(tmp_path):
    builders = pytest.importorskip("hatchling.builders.wheel")
    (path,) = builders.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])

    assert wrong(Path(path)) == []
    with zipfile.ZipFile(path) as wheel:
        assert {"profiler/__init__.py", "profiler/configs/devices/t4.toml"} <= set(wheel.namelist())
