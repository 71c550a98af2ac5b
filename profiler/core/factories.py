"""Which functions of a user's file make a model, by its source alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

KEYS = {"module", "batch"}  # of a dict that a factory returns
PARTS = range(2, 5)  # module, batch, loss, optimizer


def names(tree: ast.Module) -> list[str]:
    """The public functions of a file that return a model and a batch; where none is seen to, those that could."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    callable_ = [function for function in functions if _needs_nothing(function)]
    seen = [function.name for function in callable_ if any(map(_is_model, _returned(function)))]
    return seen or [function.name for function in callable_ if any(_returned(function))]


def _needs_nothing(function: ast.FunctionDef) -> bool:
    """Whether every parameter has a default, but for the batch size, which may be given."""
    positional = [*function.args.posonlyargs, *function.args.args]
    without = positional[: len(positional) - len(function.args.defaults)]
    keywords = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    needed = {argument.arg for argument in without} | {argument.arg for argument, value in keywords if value is None}
    return needed <= {"batch_size"}


def _returned(function: ast.FunctionDef) -> list[ast.expr]:
    """What a function returns itself, without the functions and classes within it."""
    return [node.value for node in _own(function) if isinstance(node, ast.Return) and node.value is not None]


def _own(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield child
            yield from _own(child)


def _is_model(value: ast.expr) -> bool:
    """Whether what is returned has the form of (module, batch[, loss[, optimizer]]), or of a dict with these keys."""
    if isinstance(value, ast.Tuple):
        return len(value.elts) in PARTS
    if isinstance(value, ast.Dict):
        return {key.value for key in value.keys if isinstance(key, ast.Constant)} >= KEYS
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id == "dict" and {keyword.arg for keyword in value.keywords} >= KEYS
    return False
