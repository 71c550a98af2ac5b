"""Reads pickles of plain data: numbers, text, lists, dicts and the like. No class and no function is ever looked up."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from profiler.core.errors import UserError

MOST_BYTES = 4 * 2**30
BROKEN = (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, KeyError, IndexError, MemoryError)


def load(path: Path) -> Any:
    """Return the plain data in a pickle. Raises UserError if the file cannot be read or contains anything else."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UserError(f"{path} is larger than 4 GiB", hint="record fewer entries: max_entries=100000")
        with path.open("rb") as file:
            return _Unpickler(file).load()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except BROKEN as error:
        raise UserError(f"{path} is not a pickle of plain data: {error}") from None


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Refuse: every opcode that calls something gets it from here."""
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")
