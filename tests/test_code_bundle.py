"""What travels to a cluster: the user's own code that is named and imported, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from profiler.core import gpu_specs
from profiler.core.case import Choice
from profiler.core.errors import UserError
from profiler.engines import code_bundle
from tests import make


def code(model: str, strategy: str = "none") -> set[str]:
    return {str(path) for path in code_bundle.code([make.case(strategy, model=Choice(model))])}


def written(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.slow
def test_a_file_travels_with_what_it_imports_of_the_users_own(here):
    written(
        here,
        code__mine="import torch, beside\nfrom parts import layers\nfrom whole.deep import thing\ndef make(): ...",
        code__beside="",
        code__parts__layers="from . import more\nfrom .more import others",
        code__parts__more="",
        code__parts__unused="",
        whole__deep="import os",
        alone="",
    )
    (here / "code" / "data.bin").touch()

    assert code("code/mine.py:make") == {
        "code/mine.py", "code/beside.py", "code/parts/layers.py", "code/parts/more.py", "whole/deep.py",
    }  # fmt: skip


def test_a_module_below_the_present_folder_travels_and_one_that_is_installed_does_not(here, monkeypatch):
    written(here, pack__models="def make(): ...")
    (here / "pack" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(here))

    assert code("pack.models:make") == {"pack/models.py"}
    assert code("torch.nn:Linear") == set()
    assert code("torchvision:resnet18") == code("mlp") == set()


def test_a_plan_that_is_read_from_a_file_travels(here):
    (here / "plan.json").write_text("{}")

    assert code("mlp", "plan:file=plan.json") == {"plan.json"}


@pytest.mark.parametrize("name", ["/somewhere/mine.py", "../mine.py", "code/../../mine.py"])
def test_a_file_that_is_not_below_the_present_folder_is_refused(here, name):
    with pytest.raises(UserError, match="cannot be sent to a cluster") as caught:
        code(f"{name}:make")

    assert "name it from there" in caught.value.hint


def test_a_file_that_holds_a_secret_is_refused(here):
    written(here, mine="from keys import TOKEN\ndef make(): ...", keys=f"TOKEN = 'hf_{'a' * 30}'")

    with pytest.raises(UserError, match=r"'keys\.py' holds what looks like a secret"):
        code("mine.py:make")


def test_the_package_that_travels_works_by_itself_and_knows_the_gpus(tmp_path):
    code_bundle.pack_package(tmp_path)

    lines = "import profiler; from profiler.core import gpu_specs; print(profiler.__file__, *gpu_specs.names())"
    done = subprocess.run(
        [sys.executable, "-c", lines],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == [str(tmp_path / "profiler" / "__init__.py"), *gpu_specs.names()]


def test_what_cannot_be_read_as_python_imports_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("import broken\nfrom ...above import thing\n")
    (tmp_path / "broken.py").write_text("def (:\n")

    found = code_bundle.code([make.case(model=Choice("model.py:make"))])

    assert set(found) == {Path("model.py"), Path("broken.py")}


def test_a_link_that_leads_out_of_the_folder_does_not_travel(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "theirs.py").write_text("x = 1\n")
    monkeypatch.chdir(tmp_path / "here")
    Path("model.py").write_text("import link\n")
    Path("link.py").symlink_to(tmp_path / "theirs.py")

    assert set(code_bundle.code([make.case(model=Choice("model.py:make"))])) == {Path("model.py")}
