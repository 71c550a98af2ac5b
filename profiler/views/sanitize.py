"""Text from files and child processes, made harmless for one line of a screen, and short."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

ASCII = str.maketrans({"±": "+-", "…": "..."})  # ours; whatever else there is, is escaped
AT_EDGE = re.compile(r"  |\n | \n")  # spaces that one line of words has not, in lines
ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)?")  # colours, titles, links of a terminal


@lru_cache(maxsize=4096)  # tables repeat their words
def plain(text: str, *, encoding: str = "utf-8") -> str:
    """The text on one line, without control characters, in characters that the encoding has."""
    if text.isascii() and text.isprintable() and " ".join(text.split()) == text:
        return text  # as nearly all is
    line = " ".join(ESCAPE.sub("", text).split())
    if not line.isprintable():
        line = "".join(character for character in line if unicodedata.category(character) not in ("Cc", "Cf", "Cs"))
    try:
        line.encode(encoding)
        return line
    except UnicodeEncodeError:
        return line.translate(ASCII).encode(encoding, "backslashreplace").decode(encoding)


def plain_cells(texts: Sequence[str], *, encoding: str = "utf-8") -> tuple[str, ...]:
    """`plain` of every text, for columns of 100,000: each different text once, and none where all are plain already."""
    column = "\n".join(("", *texts, ""))
    is_one_line_each = column.count("\n") == len(texts) + 1
    if is_one_line_each and column.isascii() and not AT_EDGE.search(column) and column.replace("\n", "").isprintable():
        return tuple(texts)
    plain_of = {text: plain(text, encoding=encoding) for text in set(texts)}
    return tuple(map(plain_of.__getitem__, texts))


def escaped(text: str) -> str:
    """A whole document without characters that a terminal obeys: escaped as in JSON, where it stays the same document.

    Ends of lines and tabs stay. Escaped are C0 and C1 controls, bidirectional controls, and U+2028 and U+2029.
    """
    return "".join(character if _is_harmless(character) else _escape(character) for character in text)


def _is_harmless(character: str) -> bool:
    return character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()  # one or two of 16 bits
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def short(value: object, length: int) -> str:
    """Any value as one harmless line, without its middle where it is longer than `length` characters."""
    return shortened(plain(str(value)), length)


def shortened(text: str, length: int) -> str:
    """The text without its middle where it is longer: names of one kind differ at their ends."""
    before = (length - 1) // 2
    return text if len(text) <= length else f"{text[:before]}…{text[before + 1 - length :]}"
