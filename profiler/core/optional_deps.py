"""Imports libraries that not every user has, or has whole, and says what to install."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from profiler.core.errors import UserError

EXTRAS = {
    "pyarrow": "parquet",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "submitit": "slurm",
    "ray": "ray",
}
BROKEN = (ImportError, OSError, AttributeError, TypeError, ValueError, RuntimeError, SyntaxError)  # by a damaged one


def load(module: str, *, needs: str | None = None) -> ModuleType:
    """A module of ours that needs such a library.

    `needs` is one that comes with gcprof and is for pictures or pages alone: it is tried by itself first. Raises
    UserError, naming what to install, where an extra is missing (exit code 2), or where `needs` is missing or broken
    (exit code 1: what was measured is there all the same).
    """
    if needs:
        _try(needs)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        raise UserError(f"this needs {library}", hint=f"pip install 'gcprof[{EXTRAS[library]}]'") from error


def load_function(target: str) -> Any:
    """The function that `package.module:function` of a table names, imported only now. Raises UserError as `load`."""
    module, _, attribute = target.partition(":")
    return getattr(load(module), attribute)


def _try(library: str) -> None:
    try:
        importlib.import_module(library)
    except BROKEN as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == library
        trouble = f"this needs {library}" if is_missing else f"{library} does not work here: {error}"
        install = f"pip install {'' if is_missing else '--force-reinstall '}{library}"
        hint = install if is_missing else f"where its own words do not help: {install}"
        raise UserError(trouble, hint=hint, exit_code=1) from error
