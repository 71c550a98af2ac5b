"""Text from files and child processes, made harmless for one line of a screen. Knows nothing of tables."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

ASCII = str.maketrans({"±": "+-", "…": "..."})  # ours; whatever else there is, is escaped


ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)?")  # colours, titles, links of a terminal


@lru_cache(maxsize=4096)  # tables repeat their words
def plain(text: str, *, encoding: str = "utf-8") -> str:
    """The text on one line, without control characters, in characters that the encoding has."""
    if text.isascii() and text.isprintable() and " ".join(text.split()) == text:
        return text  # as nearly all is
    spaced = " ".join(ESCAPE.sub("", text).split())
    harmless = spaced if spaced.isprintable() else _without_controls(spaced)
    try:
        harmless.encode(encoding)
        return harmless
    except UnicodeEncodeError:
        return harmless.translate(ASCII).encode(encoding, "backslashreplace").decode(encoding)


def _without_controls(text: str) -> str:
    return "".join(character for character in text if unicodedata.category(character) not in ("Cc", "Cf", "Cs"))
