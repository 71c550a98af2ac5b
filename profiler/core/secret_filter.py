"""Hides secrets by their names or their shapes.

Every text that is stored and not written by gcprof itself passes through `hide`: commands, error messages, output of
trials.
"""

from __future__ import annotations

import json
import os
import re

HIDDEN = "[hidden]"
SHORTEST = 8  # characters of a secret in the environment; shorter values are ordinary words
WORDS = "token|secrets?|password|passwd|passphrase|credentials?|jwt"
KEYS = (
    "(?:api|app|application|auth|access|secret|private|priv|client|service|encryption|storage|account|db|database)"
    "[_-]?key"
)
PASSED = "(?:ssh|db|database|pg|mysql|redis|smtp|ftp|mail|user|root|admin|key)[_-]?pass"
NAME = re.compile(  # of a secret variable; PWD and OLDPWD are folders, and GIT_ASKPASS is a program
    rf"(?:{WORDS}|tokens|{KEYS}|{PASSED}|jwts|[_-](?:key|pwd|pass|pat|dsn)|(?:^|[_-])(?:auth|cookies?)|secret_key_base"
    r"|secret[_-]?id|webhook(?:_ur[il])?)$",
    re.IGNORECASE,
)
OPTION_NAME = re.compile(rf"(?:^|_|-)(?:{WORDS}|{KEYS})$", re.IGNORECASE)  # not `key` and `sort_key`, options of models
SHAPES = tuple(
    re.compile(pattern, re.ASCII)  # none of them spans lines
    for pattern in (
        r"(://)[^\s/'\"]+(?=@)",  # user and password in a URL
        rf"([?&](?i:(?:[\w-]*[_-])?(?:{WORDS}|{KEYS}|sig|signature))=)[^\s&#'\"]+",  # query parameters of a URL
        r"((?i:\bauthorization)['\"]?[:=][ \t]*['\"]?(?i:basic|token)[ \t]+)[^\s'\",]+",
        r"((?i:\bbearer)[ \t]+)[\w.~+/=-]{16,}",
        r"()\b(?:hf_|sk-|gh[oprsu]_|github_pat_|glpat-|xox[abps]-)[\w-]{16,}",  # Hugging Face, OpenAI, GitHub, ...
        r"()\b(?:npm_[A-Za-z0-9]{30,}|AIza[\w-]{30,})",  # npm, Google
        r"()\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",  # Amazon
        r"()\beyJ[\w-]{8,999}\.eyJ[\w-]{8,}\.[\w-]*",  # a JSON web token
    )
)
KEY_KINDS = r"-----BEGIN [A-Z ]*PRIVATE KEY( BLOCK)?-----.*?(-----END [A-Z ]*PRIVATE KEY( BLOCK)?-----|\Z)"
KEY_BLOCK = re.compile(KEY_KINDS, re.DOTALL)  # PEM, OpenSSH and PGP; one without an end hides the rest of the text
OPTION = re.compile(r"([\w-]+)=([^,|\s]+)")
HARMLESS = re.compile(r"[\d.+-]+(e[+-]?\d+)?|true|false|none", re.IGNORECASE)


def hide(text: str) -> str:
    """Return the text without the values of secret environment variables and without secrets of known shapes."""
    for value in _of_environment():
        text = text.replace(value, HIDDEN)
    for shape in SHAPES:
        text = shape.sub(rf"\1{HIDDEN}", text)
    return KEY_BLOCK.sub(HIDDEN, text)


def hide_bytes(data: bytes) -> bytes:
    """Return bytes with the same secrets hidden; they need not be text, and all other bytes stay as they are."""
    return hide(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def is_in(text: str) -> bool:
    """Whether a text has a secret, or a `key=value` with a secret's name and a value that is no number or boolean."""
    named = any(OPTION_NAME.search(key) and not HARMLESS.fullmatch(value) for key, value in OPTION.findall(text))
    return named or hide(text) != text


def _of_environment() -> list[str]:
    """Return the secret values in the environment, also as escaped in Python and JSON strings.

    The longest is first, since a value may begin with another.
    """
    values = {value for name, value in os.environ.items() if NAME.search(name) and len(value) >= SHORTEST}
    written = values | {repr(value)[1:-1] for value in values} | {json.dumps(value)[1:-1] for value in values}
    return sorted(written, key=len, reverse=True)
