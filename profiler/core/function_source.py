"""Finds the source of functions without importing anything, and the functions of a user's file that make a model."""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
from collections.abc import Callable
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path

from profiler.core.errors import UserError, nearest_or_all

MOST_HOPS = 4  # aliases followed from a name to its function
KEYS = {"module", "batch"}  # required in a dict that a factory returns
NO_FACTORY = "it has none: write one that returns (module, batch[, loss])"
SCRIPT = "main"  # the usual name of a function that does all the work, which a hint must not lead to
PARTS = range(2, 5)  # lengths of a tuple (module, batch[, loss[, optimizer]])


@cache
def read(target: str, hops: int = MOST_HOPS) -> ast.FunctionDef:
    """Return the syntax tree of "package.module:function" or "path/to/file.py:function". Raises UserError if none."""
    name, _, attribute = target.rpartition(":")
    path, tree = _tree(name)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if attribute in functions:
        return functions[attribute]
    if hops and (elsewhere := _bound_to(attribute, tree, path)):
        return read(elsewhere, hops - 1)
    if any(isinstance(node, ast.ClassDef) and node.name == attribute for node in tree.body):
        hint = f"write a function that returns ({attribute}(...), batch[, loss])"
        raise UserError(f"'{attribute}' in '{path}' is a class", hint=hint)
    makers = _factories(tree)
    raise UserError(
        f"'{path}' has no function '{attribute}'", hint=nearest_or_all(attribute, makers) if makers else NO_FACTORY
    )


def place(target: str) -> Path:
    """Return the file of "package.module:function" or "path/to/file.py:function". Raises UserError if there is none."""
    return _source(target.rpartition(":")[0])[0]


def which_factory(path: str) -> str:
    """Return a hint that lists the functions of a file that make a model, as users would type them."""
    made = ", ".join(f"{path}:{name}" for name in _factories(_tree(path)[1]))
    return f"name it: {made}" if made else NO_FACTORY


def classes(module: str) -> list[str]:
    """Return the capitalized names of what a module defines as classes or imports by name, sorted."""
    tree = _tree(module)[1]
    imported = (name for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names)
    defined = (node.name for node in tree.body if isinstance(node, ast.ClassDef))
    return sorted(name for name in {*(name.asname or name.name for name in imported), *defined} if name[:1].isupper())


def _tree(name: str) -> tuple[Path, ast.Module]:
    """Return the path and syntax tree of "package.module" or "path/to/file.py". Raises UserError if unreadable."""
    path, get_source = _source(name)
    try:
        return path, ast.parse(get_source())
    except (OSError, ImportError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"cannot read '{path}': {reason}", hint="write path/to/file.py:factory") from None
    except (SyntaxError, ValueError) as error:
        where = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise UserError(f"{path}{where}: {error.args[0]}", hint="Python cannot read this file") from None


def _bound_to(name: str, tree: ast.Module, path: Path) -> str | None:
    """Return what a name is an alias of, by `name = other` or `from module import other as name`; None if it is none.

    A module is looked for only in the file's own folder; nothing is imported.
    """
    for node in reversed(tree.body):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            targets = {target.id for target in node.targets if isinstance(target, ast.Name)}
            if name in targets and node.value.id != name:
                return f"{path}:{node.value.id}"
        elif isinstance(node, ast.ImportFrom) and node.module and node.level <= 1:
            original = next((alias.name for alias in node.names if (alias.asname or alias.name) == name), None)
            module = path.parent.joinpath(*node.module.split("."))
            for file in (module.with_suffix(".py"), module / "__init__.py"):
                if original and file.is_file():
                    return f"{file}:{original}"
    return None


def _source(name: str) -> tuple[Path, Callable[[], str]]:
    """Return the path of a file or module, found without importing anything, and a function that reads its text.

    A module is read by its loader, since it may be in a zip file.
    """
    if name.endswith(".py"):
        return Path(name), lambda: Path(name).read_text(encoding="utf-8")
    try:
        spec = _module_spec(name)
    except (ImportError, ValueError) as error:
        raise UserError(f"no module '{name}': {error}", hint="write package.module:factory") from None
    if spec is None or spec.origin is None:
        raise UserError(f"there is no module '{name}'", hint="write package.module:factory, or path/to/file.py:factory")
    origin, get_source = Path(spec.origin), getattr(spec.loader, "get_source", lambda module: None)
    return origin, lambda: get_source(name) or origin.read_text(encoding="utf-8")


def _module_spec(name: str) -> ModuleSpec | None:
    """Return a module's spec; `importlib.util.find_spec` would import, and so run, the packages that contain it."""
    first, *inner = name.split(".")
    spec = importlib.util.find_spec(first)
    for number in range(len(inner)):
        folders = list(spec.submodule_search_locations or ()) if spec else []
        whole = ".".join([first, *inner[: number + 1]])
        finders = [finder for folder in folders if (finder := pkgutil.get_importer(folder))]
        portions = [portion for finder in finders if (portion := finder.find_spec(whole))]
        spec = next((portion for portion in portions if portion.loader), portions[0] if portions else None)
    return spec


def arguments(function: ast.FunctionDef) -> dict[str, tuple[ast.arg, ast.expr | None]]:
    """Return the parameters of a function by name, the keyword-only ones last, each with its default if it has one."""
    positional = [*function.args.posonlyargs, *function.args.args]
    defaults = [None] * (len(positional) - len(function.args.defaults)) + function.args.defaults
    every = zip([*positional, *function.args.kwonlyargs], [*defaults, *function.args.kw_defaults], strict=True)
    return {argument.arg: (argument, default) for argument, default in every}


def _factories(tree: ast.Module) -> list[str]:
    """Return the public functions that visibly return a model and a batch; if there are none, those that might.

    Those that the file runs as a script are not among them: to call one to see what it returns may take hours.
    """
    returned = {
        node.name: [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return) and inner.value]
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.name != SCRIPT
        if {name for name, (_, default) in arguments(node).items() if default is None} <= {"batch_size"}
    }
    called = [node for node in tree.body if isinstance(node, ast.If | ast.Expr)]
    run = {name.id for node in called for name in ast.walk(node) if isinstance(name, ast.Name)}
    made = [name for name, values in returned.items() if any(map(_is_model, values))]
    return made or [name for name, values in returned.items() if values and name not in run]


def _is_model(value: ast.expr) -> bool:
    """Whether a returned expression has the form (module, batch[, loss[, optimizer]]), or is a dict with these keys."""
    if isinstance(value, ast.Tuple):
        return len(value.elts) in PARTS
    if isinstance(value, ast.Dict):
        return {key.value for key in value.keys if isinstance(key, ast.Constant)} >= KEYS
    return ast.unparse(value).startswith("dict(") and {one.arg for one in getattr(value, "keywords", ())} >= KEYS
