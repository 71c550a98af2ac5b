"""Collects the code that is sent to the nodes of a cluster: this package, and the user's code that a plan names."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from profiler.core import catalogue, function_source, gpu_specs, secret_filter
from profiler.core.case import Case
from profiler.core.errors import UserError
from profiler.training import models

PACKAGE = Path(__file__).parents[1]


def pack_package(folder: Path) -> Path:
    """Copy this package and its table of GPUs into a folder; return the copy's path."""
    target = folder / PACKAGE.name
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__", "results"), dirs_exist_ok=True)
    shutil.copytree(gpu_specs.folder(), target / "configs" / "devices", dirs_exist_ok=True)
    return target


def pack_code(folder: Path, files: Iterable[Path]) -> None:
    """Copy files of the current folder into another, at the same relative paths."""
    for path in files:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / path)


def code(cases: Iterable[Case]) -> tuple[Path, ...]:
    """Return the user's files that the cases name and, transitively, import; paths are relative to the current folder.

    Modules from elsewhere must be installed on the nodes, and data is not sent. Raises UserError for a file that is not
    below the current folder, or that holds what looks like a secret.
    """
    cwd, paths = Path.cwd(), dict[Path, None]()
    for path in dict.fromkeys(_named(cases)):
        paths |= (
            dict.fromkeys(_with_imports(path, roots=(path.parent, Path()))) if path.suffix == ".py" else {path: None}
        )
    for path in paths:
        if secret_filter.hide(text := (cwd / path).read_text(encoding="utf-8", errors="replace")) != text:
            message = f"'{path}' holds what looks like a secret, and would be sent to every node"
            raise UserError(message, hint="let it read the secret from the environment of the node")
    return tuple(paths)


def _named(cases: Iterable[Case]) -> Iterator[Path]:
    for choice in dict.fromkeys(choice for case in cases for choice in (case.model, case.strategy)):
        if file := choice.options.get("file"):
            yield _below(file)
        if not catalogue.is_code(choice.name, models.TABLE):
            continue
        place = choice.name.rpartition(":")[0]
        if place.endswith(".py"):
            yield _below(place)
        elif (path := function_source.place(choice.name).resolve()).is_relative_to(Path.cwd()):
            yield path.relative_to(Path.cwd())


def _below(name: str) -> Path:
    """Return the path that the user named. Raises UserError if it would lead elsewhere on a node."""
    path = Path(name)
    if path.is_absolute() or not path.resolve().is_relative_to(Path.cwd()) or ".." in path.parts:
        hint = "go to a folder above it, and name it from there, as in models/mine.py:make"
        raise UserError(
            f"'{name}' cannot be sent to a cluster: its path is not relative to the current folder", hint=hint
        )
    return path


def _with_imports(path: Path, *, roots: tuple[Path, ...]) -> Iterator[Path]:
    """Return a file and, transitively, the files in `roots` that it imports; packages with their __init__.py."""
    cwd, paths, waiting = Path.cwd(), dict[Path, None](), [path]
    while waiting:
        source = waiting.pop()
        if source not in paths:
            paths[source] = None
            files = (place for place in _imported(source, roots) if place.is_file())
            waiting += [file for file in files if file.resolve().is_relative_to(cwd)]  # a link may lead anywhere
    return iter(paths)


def _parsed(path: Path) -> ast.AST:
    """Return the syntax tree; an empty one if the file is not valid Python, which raises when it is run."""
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _imported(path: Path, roots: tuple[Path, ...]) -> Iterator[Path]:
    """Yield the paths at which the modules that a file imports may be."""
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from (place for root in roots for place in _places(root, alias.name))
        elif isinstance(node, ast.ImportFrom):
            below = roots if not node.level else tuple(path.parents)[node.level - 1 : node.level]
            words = [f"{node.module}.{alias.name}" if node.module else alias.name for alias in node.names]
            yield from (place for root in below for word in words for place in _places(root, word))


def _places(root: Path, name: str) -> Iterator[Path]:
    for piece in name.split("."):
        root = root / piece
        yield root.with_suffix(".py")
        yield root / "__init__.py"
