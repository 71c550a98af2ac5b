"""The rooms of `profiler/`, lowest first: what each may import, and which heavy libraries it may know.

The one table of them: `tests/test_layers.py` holds the code to it, and `tests/pages.py` writes ARCHITECTURE.md's table
from it. What a room is for is the first line of its own docstring.
"""

import ast
from pathlib import Path, PurePath
from typing import NamedTuple

PACKAGE = Path(__file__).parent.parent / "profiler"


class Room(NamedTuple):
    """A folder of `profiler/`, or a folder in one that may import more than its neighbours."""

    imports: frozenset[str]  # other rooms, all of them above this one in the table
    libraries: frozenset[str]  # heavy ones


def _room(imports: str = "", libraries: str = "") -> Room:
    return Room(frozenset(imports.split()), frozenset(libraries.split()))


ROOMS = {
    "core": _room(),
    "planning": _room("core"),
    "analysis": _room("core"),
    "training": _room("core", "torch torchvision timm transformers"),
    "rehearsal": _room("core", "torch"),
    "measuring": _room("core training", "torch psutil pynvml"),
    "predicting": _room("core planning analysis training measuring", "torch"),
    "scripts": _room("core training rehearsal predicting", "torch"),
    "runs": _room("core analysis"),
    "engines": _room("core analysis training rehearsal measuring predicting scripts runs", "torch ray submitit"),
    "views": _room(
        "core planning analysis training runs scripts", "matplotlib jinja2 pyarrow rich tensorboard wandb mlflow"
    ),
    "workflows": _room("core planning analysis training scripts runs engines views"),
    "workflows/in_process": _room(
        "core planning analysis training scripts measuring predicting runs engines views workflows",
        "torch cloudpickle pandas",
    ),
    "workflows/published": _room("core scripts training measuring engines workflows/in_process", "torch transformers"),
    "cli": _room("core planning analysis training scripts runs engines views workflows", "typer"),
}


def room_of(path: PurePath) -> str:
    """The room of a file or module, given as a path below `profiler/`; its first part where it is in none."""
    parts = path.with_suffix("").parts
    inner = "/".join(parts[:2])
    return inner if inner in ROOMS else parts[0]


def about(room: str) -> str:
    """The first line of a room's docstring, without its full stop."""
    text = (PACKAGE / room / "__init__.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0].removesuffix(".")


def table() -> str:
    """The rooms as a Markdown table."""
    lines = ["| room | what lives there | imports | heavy libraries |", "|---|---|---|---|"]
    for name, room in ROOMS.items():
        imports = " ".join(other for other in ROOMS if other in room.imports)
        lines.append(f"| `{name}` | {about(name)} | {imports or '-'} | {' '.join(sorted(room.libraries)) or '-'} |")
    return "\n".join(lines) + "\n"


def imports(path: Path) -> list[tuple[str, bool]]:
    """Every module that a file imports, and whether at its top level."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tried = [node for attempt in tree.body if isinstance(attempt, ast.Try) for node in attempt.body]  # optional ones
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            of = str(node.module)
            names = [f"{of}.{alias.name}" if of.startswith("profiler") else of for alias in node.names]
        else:
            continue
        found += [(name, node in tree.body or node in tried) for name in names]
    return found
