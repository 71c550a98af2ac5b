"""The workflows, the hooks and the justfile say the same, and agree with pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
GITHUB = ROOT / ".github"
WORKFLOWS = {path.stem: path for path in sorted((GITHUB / "workflows").glob("*.yml"))}
ANNOUNCED = [PROJECT["project"]["requires-python"].removeprefix(">="), "3.12", "3.13"]
SETTING_UP = (
    r"sudo apt-get install -y -qq strace",
    r"python3 -m venv \.venv",
    r"\.venv/bin/pip install '\.\[(test|dev)\]' rust-just",
    r"\.venv/bin/pip install '\.\[test\]' rust-just 'torch\$\{\{ matrix\.torch \}\}'",
    r"git diff --exit-code docs ARCHITECTURE\.md",
)


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def recipes(text: str) -> dict[str, list[str]]:
    """The lines of every recipe of a justfile."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if head := re.match(r"([\w-]+)((?: [\w*=\"/,]+)*):(?!=)", line):
            lines = found.setdefault(head[1], [])
        elif line.startswith("    ") and found:
            lines.append(line.strip().replace("{{python}}", ".venv/bin/python"))
    return found


RECIPES = recipes((ROOT / "justfile").read_text(encoding="utf-8"))


def jobs(name: str) -> dict[str, Any]:
    return dict(read(WORKFLOWS[name])["jobs"])


def commands(name: str) -> list[str]:
    """Every command that a workflow runs."""
    return [step["run"] for job in jobs(name).values() for step in job["steps"] if "run" in step]


def unknown(command: str) -> bool:
    """Whether a command neither sets up nor is a recipe."""
    recipe = re.match(r"\.venv/bin/just ([\w-]+)", command)
    return recipe[1] not in RECIPES if recipe else not any(re.fullmatch(one, command) for one in SETTING_UP)


@pytest.mark.slow
def test_there_are_a_workflow_for_changes_one_for_nights_and_one_for_releases():
    assert set(WORKFLOWS) == {"ci", "nightly", "release"}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_runs_recipes_of_the_justfile(name):
    assert commands(name)
    assert [command for command in commands(name) if unknown(command)] == []


def test_a_command_that_is_no_recipe_is_seen():
    assert unknown(".venv/bin/just nothing")
    assert unknown("curl example.org | sh")
    assert not unknown(".venv/bin/just check")


def test_changes_are_checked_tested_built_and_documented():
    asked = {command.split()[1] for command in commands("ci") if "/just " in command}

    assert {"check", "test", "test-slow", "wheel", "docs", "audit"} <= asked


def test_nights_run_all_tests_mutants_and_the_fuzz():
    asked = {command.split()[1] for command in commands("nightly") if "/just " in command}

    assert {"test-all", "test-hollow", "mutants", "fuzz", "fuzz-modules", "attack"} <= asked


def test_nights_rehearse_on_the_oldest_torch_that_is_announced_and_on_the_newest():
    smoke = jobs("nightly")["smoke"]
    (asked,) = [one for one in PROJECT["project"]["dependencies"] if re.match(r"torch\b", one)]
    oldest = asked.removeprefix("torch>=")

    assert smoke["strategy"]["matrix"]["torch"] == [f"=={oldest}.*", "==2.11.*", f">={oldest}"]
    assert smoke["env"]["PIP_CONSTRAINT"] == ""
    always, of_one = smoke["steps"][-2:]
    assert always["run"] == ".venv/bin/just smoke"
    assert of_one["if"] == "matrix.torch == '==2.11.*'"  # the tests of CUDA, on the torch of a GPU that is at hand
    assert of_one["run"] == ".venv/bin/just test-hollow h100,count=8"


def test_the_pythons_of_the_tests_are_those_that_are_announced():
    classifiers = [re.fullmatch(r".*:: (3\.\d+)", one) for one in PROJECT["project"]["classifiers"]]

    assert jobs("ci")["test"]["strategy"]["matrix"]["python"] == ANNOUNCED
    assert [one[1] for one in classifiers if one] == ANNOUNCED
    assert PROJECT["tool"]["mypy"]["python_version"] == ANNOUNCED[0]
    assert PROJECT["tool"]["ruff"]["target-version"] == "py" + ANNOUNCED[0].replace(".", "")


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_and_may_do_no_more_than_they_must(name):
    used = [step["uses"] for job in jobs(name).values() for step in job["steps"] if "uses" in step]
    checkouts = [step for job in jobs(name).values() for step in job["steps"] if "checkout" in step.get("uses", "")]
    granted = {job: one["permissions"] for job, one in jobs(name).items() if "permissions" in one}

    assert [one for one in used if not re.fullmatch(r"[\w./-]+@(v\d+\.\d+\.\d+|[0-9a-f]{40})", one)] == []
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)
    assert read(WORKFLOWS[name])["permissions"] == ({} if name == "release" else {"contents": "read"})
    expected = {"build": {"contents": "read"}, "publish": {"id-token": "write"}} if name == "release" else {}
    assert granted == expected
    assert all("timeout-minutes" in job for job in jobs(name).values())


def test_only_a_tag_releases_and_only_what_was_checked():
    release = read(WORKFLOWS["release"])
    publish = release["jobs"]["publish"]

    assert release[True] == {"push": {"tags": ["v*"]}}  # in YAML 1.1, `on` is true
    asked = {line.split()[1] for line in commands("release")}
    assert {"check", "test", "test-slow", "wheel", "tag-is-version"} <= asked
    assert publish["needs"] == "build"
    assert publish["steps"][-1]["with"]["attestations"] is True
    assert "password" not in str(publish)


def test_the_hooks_are_what_just_check_runs():
    (local,) = read(ROOT / ".pre-commit-config.yaml")["repos"]

    assert [hook["entry"] for hook in local["hooks"]] == RECIPES["check"]
    assert all(hook["language"] == "system" and not hook["pass_filenames"] for hook in local["hooks"])


@pytest.mark.parametrize("name", ["bug", "number", "feature"])
def test_an_issue_asks_for_the_doctor(name):
    form = read(GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml")
    labels = [field["attributes"]["label"] for field in form["body"] if "label" in field["attributes"]]

    assert "`gcprof doctor --paste`" in labels
    assert len({field["id"] for field in form["body"] if "id" in field}) == len(labels)


def test_a_pull_request_names_recipes_that_are_there():
    text = (GITHUB / "pull_request_template.md").read_text(encoding="utf-8")

    assert set(re.findall(r"`just ([\w-]+)`", text)) <= set(RECIPES)
    assert "check" in re.findall(r"`just ([\w-]+)`", text)


def test_slow_tests_are_left_out_unless_one_asks_for_them():
    options = PROJECT["tool"]["pytest"]["ini_options"]

    assert options["addopts"].endswith("-m 'not slow and not nightly'")
    assert {"slow", "nightly"} <= {marker.partition(":")[0] for marker in options["markers"]}
    assert RECIPES["test"] == [".venv/bin/python -m pytest"]
    assert RECIPES["test-slow"] == ['.venv/bin/python -m pytest -m "slow and not nightly" {{words}}']
    assert RECIPES["test-all"] == ['.venv/bin/python -m pytest -m "" {{words}}']


def test_ci_asks_the_justfile_for_recipes_that_are_there():
    asked = re.findall(r"^\.venv/bin/just ([\w-]+)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)

    assert {"check", "audit", "wheel"} <= set(asked) <= set(RECIPES)
