"""The image, the conda recipe and the wheel agree with pyproject.toml and run the main job."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import profiler
from profiler.cli import answer

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
RECIPE: dict[str, Any] = yaml.safe_load((ROOT / "requirements" / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}  # where conda-forge calls it otherwise
WORDS = re.compile(r"(?m)^(FROM|ARG|ENV|RUN|COPY|USER|WORKDIR|ENTRYPOINT|CMD) ((?:.|\\\n)*?)(?<!\\)$")
STEPS = WORDS.findall((ROOT / "Dockerfile").read_text(encoding="utf-8"))


def steps(name: str) -> list[str]:
    return [words for step, words in STEPS if step == name]


@pytest.mark.slow
def test_the_recipe_needs_what_the_package_needs():
    needed = [re.fullmatch(r"([\w-]+)(>=[\d.]+)?", one) for one in PROJECT["project"]["dependencies"]]
    expected = {f"{CONDA_NAMES.get(one[1], one[1])} {one[2] or ''}".strip() for one in needed}

    assert set(RECIPE["requirements"]["run"]) - {"python >=3.11"} == expected
    assert PROJECT["project"]["requires-python"] == ">=3.11"
    assert PROJECT["build-system"]["requires"] == ["hatchling"]
    assert "hatchling" in RECIPE["requirements"]["host"]


def test_the_recipe_is_of_this_version_and_licence():
    assert RECIPE["context"]["version"] == profiler.__version__
    assert RECIPE["about"]["license"] == PROJECT["project"]["license"]
    assert RECIPE["about"]["summary"] == PROJECT["project"]["description"]
    (entry,) = RECIPE["build"]["python"]["entry_points"]
    assert PROJECT["project"]["scripts"] == dict([entry.split(" = ")])


def test_every_command_that_the_recipe_tests_is_one(here):
    (script,) = [test["script"] for test in RECIPE["tests"] if "script" in test]

    commands = [shlex.split(line) for line in script]
    assert [words[0] for words in commands] == ["gcprof"] * len(commands)
    assert answer(commands[0][1:]) == 0


def test_the_image_runs_the_main_job_as_no_root():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    words = json.loads(steps("ENTRYPOINT")[0]) + json.loads(steps("CMD")[0])

    assert f"bin/{shlex.join(words)} " in readme
    assert [step for step, _ in STEPS].index("USER") < [step for step, _ in STEPS].index("ENTRYPOINT")
    assert re.fullmatch(r"python:3\.1[1-3]-slim-\w+", steps("FROM")[0])


def test_the_image_is_given_all_that_the_wheel_is_built_of_and_nothing_else():
    """The context leaves out all but what COPY names; what the wheel force-includes is among it."""
    copied = {name for words in steps("COPY") for name in words.split()[:-1]}
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    metadata = {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"], "pyproject.toml"}

    assert ignored[0] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == copied
    assert metadata <= copied
    assert [name for name in included if not any(Path(name).is_relative_to(one) for one in copied)] == []


def test_uvx_and_pipx_find_a_command_of_the_packages_own_name():
    """`uvx gcprof` and `pipx run gcprof` run the script that is called as the package is."""
    assert PROJECT["project"]["name"] in PROJECT["project"]["scripts"]
