"""Imports optional libraries, and says what to install if one is missing or broken."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from profiler.core.errors import UserError

EXTRAS = ("pyarrow", "tensorboard", "wandb", "mlflow", "submitit", "ray")  # each by the name that pip has for it
BROKEN = (ImportError, OSError, AttributeError, TypeError, ValueError, RuntimeError, SyntaxError)  # if it is damaged


def load(module: str, *, needs: str | None = None) -> ModuleType:
    """Import and return a module of gcprof that needs an optional library.

    `needs` names a library that is installed with gcprof and used only for pictures or pages: it is imported first, to
    test it. Raises UserError that says what to install: with exit code 2 if an extra is missing, with 1 if `needs` is
    missing or broken (what was measured is kept all the same).
    """
    if needs:
        _try(needs)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        raise UserError(f"this needs {library}", hint=f"pip install {library}") from error


def load_function(target: str) -> Any:
    """Import and return the function that a table names as `package.module:function`. Raises UserError as `load`."""
    module, _, attribute = target.partition(":")
    return getattr(load(module), attribute)


def _try(library: str) -> None:
    try:
        importlib.import_module(library)
    except BROKEN as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == library
        trouble = f"this needs {library}" if is_missing else f"{library} does not work here: {error}"
        install = f"pip install {'' if is_missing else '--force-reinstall '}{library}"
        hint = install if is_missing else f"if its message does not help: {install}"
        raise UserError(trouble, hint=hint, exit_code=1) from error
