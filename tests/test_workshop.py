"""Workflows and `.ci/run` run recipes that are there, and actions are pinned with no more rights than they need."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.mutants import ROOMS
from tests.wheel import wrong

ROOT = Path(__file__).parents[1]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_bytes()) for path in sorted(ROOT.glob(".github/workflows/*.yml"))}
JUST = (ROOT / "justfile").read_text(encoding="utf-8")
RECIPES = set(re.findall(r"^([\w-]+)(?: [^:\n]*)?:(?!=)", JUST, re.MULTILINE))


def steps(name: str) -> list[dict[str, Any]]:
    return [step for job in WORKFLOWS[name]["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("name", [*WORKFLOWS, ".ci/run", "pull_request_template"])
def test_recipes_that_are_run_are_there(name):
    files = {".ci/run": ROOT / ".ci" / "run", "pull_request_template": ROOT / ".github" / "pull_request_template.md"}
    text = (files.get(name) or ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")

    asked = re.findall(r"(?:\.venv/bin/|`)just ([\w-]+)", text)
    modules = re.findall(r"python -m ((?:tests|benchmarks)\.\w+)", text)

    assert "check" in asked or name == "nightly"
    assert set(asked) <= RECIPES
    assert all((ROOT / module.replace(".", "/")).with_suffix(".py").is_file() for module in modules)


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


def test_files_of_mutants_and_the_tests_that_are_to_notice_them_are_there():
    named = {name for room in ROOMS.values() for name in (*room.files, *room.tests)}

    assert [name for name in sorted(named) if not list(ROOT.glob(name))] == []


# --- the wheel


@pytest.mark.nightly
def test_the_wheel_holds_no_test_no_secret_and_no_absolute_path(tmp_path):
    builders = pytest.importorskip("hatchling.builders.wheel")
    (path,) = builders.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])

    assert wrong(Path(path)) == []
    with zipfile.ZipFile(path) as wheel:
        assert {"profiler/__init__.py", "profiler/configs/devices/t4.toml"} <= set(wheel.namelist())
