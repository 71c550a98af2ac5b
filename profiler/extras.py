"""Libraries that not every user has, imported with advice where they are missing: knows nothing of what they do."""

from __future__ import annotations

import importlib
from types import ModuleType

from profiler.errors import UserError

EXTRAS = {"pyarrow": "parquet", "tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}


def load(module: str) -> ModuleType:
    """A module of ours that needs such a library. Raises UserError, naming the extra, where that is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        raise UserError(f"this needs {library}", hint=f"pip install 'gcprof[{EXTRAS[library]}]'") from error
