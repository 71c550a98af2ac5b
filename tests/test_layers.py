"""The import law, and who may know heavy libraries."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "profiler"
LAYERS = (
    {"blame", "bounds", "errors", "kinds", "secrecy", "series", "units"},
    {"references", "case", "counts", "workload", "detour", "blocks", "extras", "files", "switches", "group"},
    {"catalogue", "migration", "outline", "record", "recipe", "precision", "rates", "shards", "signature"}
    | {"timeline"},
    {"devices"},
    {"models", "optimizers", "strategies", "parallel", "meters", "trace", "planning", "store", "analysis"}
    | {"device_choice", "rehearse", "sampling", "shortage", "sources", "trials", "here"},
    {"spec", "assemble", "views", "trackers", "upkeep", "changes"},
    {"describe", "measuring", "predicting", "sweep"},
    {"staging", "ranks"},
    {"worker", "engines", "published"},
    {"runner", "callbacks", "api"},
    {"proving", "node"},
    {"capacity"},
    {"cli"},
    {"notebook"},
)
ROOM_OF = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
HOMES = {
    "torch": {
        "workload",
        "group",
        "here",
        "ranks",
        "devices",
        "models",
        "optimizers",
        "strategies",
        "parallel",
        "meters",
        "trace",
        "blocks",
        "precision",
        "shortage",
        "switches",
        "predicting",
        "signature",
        "assemble",
        "describe",
        "measuring",
        "staging",
        "worker",
        "callbacks",
        "api",
    },
    "torchvision": {"models"},
    "timm": {"models"},
    "transformers": {"models", "callbacks"},
    "pandas": {"views", "analysis", "notebook"},
    "matplotlib": {"views"},
    "jinja2": {"views"},
    "scipy": {"analysis"},
    "pyarrow": {"views"},
    "tensorboard": {"trackers"},
    "wandb": {"trackers"},
    "mlflow": {"trackers"},
    "ray": {"engines"},
    "rich": {"views"},
    "typer": {"cli"},
    "submitit": {"engines"},
    "psutil": {"devices"},
    "pynvml": {"devices"},
}


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
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def offences(path: Path, of: str) -> list[str]:
    """What a file of this room imports and may not."""
    found = []
    for name, _ in imports(path):
        first, _, rest = name.partition(".")
        other = rest.partition(".")[0]
        if (
            first == "profiler"
            and other
            and not other.startswith("_")
            and other != of
            and ROOM_OF[other] >= ROOM_OF[of]
        ):
            found.append(f"{of} imports {other}")
        if first in HOMES and of not in HOMES[first]:
            found.append(f"{of} imports {first}")
    return found


FILES = [path for path in sorted(ROOT.rglob("*.py")) if room(path) not in ("__init__", "__main__")]


def test_there_are_files_to_check():
    assert len(FILES) > 40


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_imports_only_from_lower_layers_and_heavy_libraries_only_at_home(path):
    assert offences(path, room(path)) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from profiler import store", "strategies imports store"),
        ("from profiler.measuring import measure", "strategies imports measuring"),
        ("import profiler.cli.run", "strategies imports cli"),
        ("import pandas as pd", "strategies imports pandas"),
    ],
)
def test_an_offence_is_seen(tmp_path, text, expected):
    (tmp_path / "wrong.py").write_text(text)

    assert offences(tmp_path / "wrong.py", "strategies") == [expected]


@pytest.mark.parametrize(
    "path", [path for path in FILES if room(path) != "cli"], ids=lambda p: str(p.relative_to(ROOT))
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
        assert "profiler.catalogue" in found  # the twin: imports are seen
