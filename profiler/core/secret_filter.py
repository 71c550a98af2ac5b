"""What is a secret, by its name or by its shape, and texts without it.

Every text that is stored and not of our own making passes here: a command, what a failure said, what a trial printed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator

HIDDEN = "[hidden]"
SHORTEST = 8  # characters of a secret of the environment; shorter ones are words like any other
LONGEST = 128 << 10  # bytes of a variable of the environment; the system takes no longer one
WORDS = "token|secrets?|password|passwd|passphrase|credentials?|jwt"
KEYS = (
    "(?:api|app|application|auth|access|secret|private|priv|client|service|encryption|storage|account|db|database)"
    "[_-]?key"
)
PASSED = "(?:ssh|db|database|pg|mysql|redis|smtp|ftp|mail|user|root|admin|key)[_-]?pass"
NAME = re.compile(  # of a variable; PWD and OLDPWD are folders, and GIT_ASKPASS is a program
    rf"(?:{WORDS}|tokens|{KEYS}|{PASSED}|jwts|[_-](?:key|pwd|pass|pat|dsn)|(?:^|[_-])(?:auth|cookies?)|secret_key_base"
    r"|secret[_-]?id|webhook(?:_ur[il])?)$",
    re.IGNORECASE,
)
OPTION_NAME = re.compile(rf"(?:^|_|-)(?:{WORDS}|{KEYS})$", re.IGNORECASE)  # `key` and `sort_key` are options of models
SHAPES = tuple(
    re.compile(pattern, re.ASCII)  # none of them goes over the end of a line
    for pattern in (
        r"(://)[^\s/'\"]+(?=@)",  # who logs in at an address, and how
        rf"([?&](?i:(?:[\w-]*[_-])?(?:{WORDS}|{KEYS}|sig|signature))=)[^\s&#'\"]+",  # in an address, too
        r"((?i:\bauthorization)['\"]?[:=][ \t]*['\"]?(?i:basic|token)[ \t]+)[^\s'\",]+",
        r"((?i:\bbearer)[ \t]+)[\w.~+/=-]{16,}",
        r"()\b(?:hf_|sk-|gh[oprsu]_|github_pat_|glpat-|xox[abps]-)[\w-]{16,}",  # Hugging Face, OpenAI, GitHub, ...
        r"()\b(?:npm_[A-Za-z0-9]{30,}|AIza[\w-]{30,})",  # npm, Google
        r"()\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",  # Amazon
        r"()\beyJ[\w-]{8,999}\.eyJ[\w-]{8,}\.[\w-]*",  # a JSON web token
    )
)
LAST_LINES = 4  # of a key: two short ones, its end, and the line end before them
LINE_END = r"(?:\\[rn]|\s)+"  # also as Python and JSON write it within quotes
KEY_KINDS = r"(?:[A-Z0-9]{2,10} ){0,2}PRIVATE KEY(?: BLOCK)?"
KEY_BLOCK = re.compile(  # PEM, OpenSSH, PGP and SSH2: a head, lines of base64, and an end where it is there
    rf"-{{4,5}} ?BEGIN {KEY_KINDS} ?-{{4,5}}"
    rf"(?:{LINE_END}(?:[A-Za-z-]{{3,20}}: [^\r\n\\]*|[A-Za-z0-9+/=]{{16,}})){{0,2000}}"
    rf"(?:(?:{LINE_END}[A-Za-z0-9+/=]{{1,15}}){{0,2}}{LINE_END}(?P<end>-{{4,5}} ?END {KEY_KINDS} ?-{{4,5}}))?"
    r"|PuTTY-User-Key-File-\d:[^\r\n]*(?:[\r\n]+(?:[A-Z][A-Za-z-]{3,20}: [^\r\n]*|[A-Za-z0-9+/=]{16,})){0,2000}"
)
OPTION = re.compile(r"([\w-]+)=([^,|\s]+)")
HARMLESS = re.compile(r"[\d.+-]+(e[+-]?\d+)?|true|false|none", re.IGNORECASE)


def hide(text: str) -> str:
    """The text without values of the environment whose names say that they are secret, and without known shapes."""
    return _without(text, _of_environment())


def hide_bytes(data: bytes) -> bytes:
    """The same of bytes that may be no text: every other one stays as it is."""
    return _without(data.decode("latin-1"), _as_bytes()).encode("latin-1")


def border(data: bytes, at: int) -> int:
    """The last place up to `at` where bytes can be cut in two, and no secret with them.

    At the end of the data may stand the beginning of a value that goes on elsewhere; shapes end with their line.
    """
    text = data.decode("latin-1")
    for start, end in sorted(_spans(text, at), reverse=True):
        if start < at < end:
            at = start
    return at


def is_in(text: str) -> bool:
    """Whether a word holds a secret; `key=value` holds one too where the key says so and the value is no number."""
    named = any(OPTION_NAME.search(key) and not HARMLESS.fullmatch(value) for key, value in OPTION.findall(text))
    return named or hide(text) != text


def _without(text: str, values: list[str]) -> str:
    for value in values:
        text = text.replace(value, HIDDEN)
    for shape in SHAPES:
        text = shape.sub(rf"\1{HIDDEN}", text)
    return KEY_BLOCK.sub(HIDDEN, text)


def _spans(text: str, at: int) -> Iterator[tuple[int, int]]:
    """From where to where secrets stand, as far as they can reach over a place."""
    for shape in SHAPES:
        yield from (match.span() for match in shape.finditer(text))
    for match in KEY_BLOCK.finditer(text):
        yield match.start(), len(text) + 1 if _goes_on(match, text) else match.end()
    for value in _as_bytes():
        start = text.find(value[0], max(0, at - len(value)), at)
        while start >= 0:
            if value.startswith(text[start : start + len(value)]):  # all of it, or what is there of it yet
                yield start, start + len(value)
            start = text.find(value[0], start + 1, at)


def _goes_on(block: re.Match[str], text: str) -> bool:
    """Whether a key has not ended yet where the text does: behind it are at most the beginnings of its last lines."""
    rest = text[block.end() :]
    return not block["end"] and rest.count("\n") <= LAST_LINES and len(text) - block.start() < LONGEST


def _as_bytes() -> list[str]:
    """The values as the environment holds them, a character a byte."""
    return [os.fsencode(value).decode("latin-1") for value in _of_environment()]


def _of_environment() -> list[str]:
    """The longest first, since one may begin with another; also as Python and JSON write them within quotes."""
    values = {value for name, value in os.environ.items() if NAME.search(name) and len(value) >= SHORTEST}
    written = values | {repr(value)[1:-1] for value in values} | {json.dumps(value)[1:-1] for value in values}
    return sorted(written, key=len, reverse=True)
