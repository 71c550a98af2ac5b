"""An error of our own, kept whole in a file: knows nothing of commands."""

from __future__ import annotations

import os
import tempfile
import traceback

from profiler.core.secret_filter import hide

FOLDER: str | None = None  # where temporary files are


def keep(error: BaseException) -> str | None:
    """Write the traceback to a new file that only this user reads; its path, or None where no place takes it."""
    try:
        descriptor, path = tempfile.mkstemp(prefix="gcprof-error-", suffix=".log", dir=FOLDER)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(hide("".join(traceback.format_exception(error))))
    except OSError:
        return None
    return path
