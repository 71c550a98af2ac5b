"""Make text from files and child processes safe to print: on one line, without control characters, shortened."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

ASCII = str.maketrans({"±": "+-", "…": "..."})  # symbols of ours; others that the encoding lacks are escaped
ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)?")  # colors, titles, links of a terminal


@lru_cache(maxsize=4096)  # tables repeat their words
def plain(text: str, *, encoding: str = "utf-8") -> str:
    """Return the text on one line, without control characters, limited to what the encoding can represent."""
    if text.isascii() and text.isprintable() and " ".join(text.split()) == text:
        return text  # the common case
    line = " ".join(ESCAPE.sub("", text).split())
    if not line.isprintable():
        line = "".join(character for character in line if unicodedata.category(character) not in ("Cc", "Cf", "Cs"))
    try:
        line.encode(encoding)
        return line
    except UnicodeEncodeError:
        return line.translate(ASCII).encode(encoding, "backslashreplace").decode(encoding)


def escaped(text: str) -> str:
    """Return a document with terminal control characters escaped as in JSON, so that a JSON document keeps its meaning.

    Line ends and tabs stay. C0, C1 and bidirectional controls, U+2028 and U+2029 are escaped.
    """

    def is_harmless(character: str) -> bool:
        return character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs"

    return "".join(character if is_harmless(character) else _escape(character) for character in text)


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()  # one or two UTF-16 code units
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def short(value: object, length: int) -> str:
    """Return a value as one line that is safe to print, its middle elided if it is longer than `length` characters."""
    return shortened(plain(str(value)), length)


def shortened(text: str, length: int) -> str:
    """Return the text, its middle elided if it is longer than `length`: similar names differ at their ends."""
    before = (length - 1) // 2
    return text if len(text) <= length else f"{text[:before]}…{text[before + 1 - length :]}"
