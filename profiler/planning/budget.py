"""A budget's word -> bytes: knows nothing of plans."""

from __future__ import annotations

import math
import re

from profiler.core.errors import UserError

UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9}
HINT = "8GiB, 750MiB, 60% of the peak without checkpointing, or max"


def parse_bytes(word: str, *, flag: str, hint: str = "8GiB, 750MiB or plain bytes") -> int:
    """`8GiB`, `750 MiB`, `1e9`. Raises UserError for what is no number of bytes above 0."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([a-z]*)", word.strip().lower(), flags=re.ASCII)
    size = UNITS.get(found[2]) if found else None
    value = float(found[1]) * size if found and size else 0.0
    if not 1 <= value < 2**63:
        raise UserError(f"{flag} cannot be '{word}'", hint=hint)
    return int(value)


def parse_budget(word: str, *, whole_bytes: int) -> int:
    """A budget in bytes; `whole_bytes` is the peak without checkpointing, which `max` and percent are of.

    Raises UserError.
    """
    if word.strip().lower() == "max":
        return whole_bytes
    percent = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", word.strip(), flags=re.ASCII)
    if percent is None:
        return parse_bytes(word, flag="--budget", hint=HINT)
    fraction = float(percent[1]) / 100
    if not (0 < fraction <= 1 and math.isfinite(fraction)):
        raise UserError(f"--budget cannot be '{word}'", hint=HINT)
    return int(fraction * whole_bytes)
