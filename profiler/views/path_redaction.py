"""Texts without what could tell whose machine it was: knows nothing of runs or of pages."""

from __future__ import annotations

import re

from profiler.core.secret_filter import HIDDEN, hide

START = r"(?:[a-z][a-z0-9+.-]{1,20}://|~[\w.-]*/|/(?=[\w.~/-])|[A-Za-z]:[\\/]|\\\\)"  # of an absolute path
FILE = r"[\w.-]{0,255}\.[A-Za-z]\w*"  # no file has a longer name
PLACE = re.compile(
    rf"(?P<quoted>'{START}[^']*'|\"{START}[^\"]*\""
    rf"|(?<!\w)'(?:[\w.~ -]{{1,255}}[\\/])+[\w. -]{{0,255}}\.[A-Za-z]\w*'"
    rf"|\"(?:[\w.~ -]{{1,255}}[\\/])+[\w. -]{{0,255}}\.[A-Za-z]\w*\")"
    rf"|(?P<absolute>(?<![\w.\])]){START}(?:{re.escape(HIDDEN)}|[^\s'\"<>|,;()\[\]])+)(?P<after> {FILE})?"
    rf"|(?P<relative>(?:[\w.~-]{{1,255}}[\\/])+{FILE})"
    r"|(?P<address>[\w.+-]{1,64}@[\w.-]+)"  # without limits each letter of a long word is looked at from each before it
    r"|(?P<number>\b(?:(?:GPU|MIG)-[0-9A-Za-z][0-9A-Za-z/-]+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}))"
)


def hidden(text: str, *, wholly: bool = False) -> str:
    """A text without secrets, folders, addresses and numbers of devices; files keep their own names but `wholly`."""
    return PLACE.sub(HIDDEN if wholly else _instead, hide(text))


def _instead(match: re.Match[str]) -> str:
    if match["address"] or match["number"]:
        return HIDDEN
    name, after = _name(match["absolute"] or match[0].strip("'\"")), match["after"] or ""
    if after and not name:  # the rest of a name with a space in it
        return f"[path]/{after.strip()}"
    return f"[path]/{name}{after}" if name else "[path]"


def _name(path: str) -> str:
    """Of a file; of a folder it tells too much."""
    name = re.split(r"[\\/]", path)[-1]
    return name if re.search(r"\.[A-Za-z]\w*", name) else ""
