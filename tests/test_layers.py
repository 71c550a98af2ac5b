"""The import law, and who may know heavy libraries."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.rooms import PACKAGE, ROOMS, table

HEAVY = frozenset().union(*(room.libraries for room in ROOMS.values()))


def imports(path: Path) -> list[tuple[str, bool]]:
    """Every module that a file imports, and whether at its top level."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tried = [node for attempt in tree.body if isinstance(attempt, ast.Try) for node in attempt.body]  # optional ones
    found = []
    for node in ast.walk(tree):
        names = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [
                f"{node.module}.{alias.name}" if node.module == "profiler" else str(node.module) for alias in node.names
            ]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        found += [(name, node in tree.body or node in tried) for name in names]
    return found


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def offences(path: Path, of: str) -> list[str]:
    """What a file of this room imports and may not."""
    found = []
    for name, _ in imports(path):
        first, _, rest = name.partition(".")
        other = rest.partition(".")[0]
        if first == "profiler" and other in ROOMS and other != of and other not in ROOMS[of].imports:
            found.append(f"{of} imports {other}")
        if first in HEAVY and first not in ROOMS[of].libraries:
            found.append(f"{of} imports {first}")
    return found


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if room(path) not in ("__init__", "__main__")]


def test_the_top_of_the_package_is_its_rooms_and_four_files():
    """At most 14 folders; `configs` and `results` stand there in the wheel alone."""
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    files = {path.name for path in PACKAGE.iterdir() if path.is_file()}

    assert folders == set(ROOMS) - {"api"}
    assert len(folders) <= 14
    assert files == {"__init__.py", "__main__.py", "api.py", "py.typed"}


def test_no_arrow_runs_back_up():
    order = list(ROOMS)

    for name, one in ROOMS.items():
        assert one.imports <= set(order[: order.index(name)]), name


def test_architecture_shows_the_table_of_rooms():
    assert table() in (PACKAGE.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_every_dependency_is_imported_by_the_package():
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[^\w-]", line)[0] for line in project["dependencies"]}

    imported = {name.partition(".")[0] for path in FILES for name, _ in imports(path)}

    assert names - imported == set()


def test_there_are_files_to_check():
    assert len(FILES) > 40


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_from_lower_layers_and_heavy_libraries_only_at_home(path):
    assert offences(path, room(path)) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from profiler import runs", "training imports runs"),
        ("from profiler.measuring import measure", "training imports measuring"),
        ("import profiler.cli.run", "training imports cli"),
        ("import pandas as pd", "training imports pandas"),
    ],
)
def test_an_offence_is_seen(tmp_path, text, expected):
    (tmp_path / "wrong.py").write_text(text)

    assert offences(tmp_path / "wrong.py", "training") == [expected]


@pytest.mark.parametrize(
    "path", [path for path in FILES if room(path) != "cli"], ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_functions_import_nothing_outside_the_command_line(path):
    late = [name for name, at_top in imports(path) if not at_top]
    source = path.read_text(encoding="utf-8")

    excused = source.count("# noqa: PLC0415  ") + source.count("if TYPE_CHECKING:")
    assert not late or excused, late


def modules_after(words: list[str]) -> set[str]:
    """The names of all modules in a fresh process that ran this command."""
    code = (
        "import sys\nfrom profiler.cli import answer\n"
        f"code = answer({words!r})\nprint(); print('MODULES', *sys.modules)\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("MODULES ")[2].split())


def test_help_imports_nothing_heavy():
    assert not modules_after(["--help"]) & {"torch", "numpy", "pandas", "matplotlib", "rich"}


def test_listing_models_and_strategies_does_not_import_torch():
    for command in ("models", "strategies"):
        found = modules_after([command])
        assert "torch" not in found
        assert "profiler.core.catalogue" in found  # the twin: imports are seen
