"""Files that anyone may have written, read within one limit of size; files replaced whole by a rename; secrets hidden.

Every text that is stored and not written by gcprof itself passes through `hide`.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from profiler.core.errors import UserError

MOST_BYTES = 64 << 20  # of a document or a line; the manifest of 100,000 trials takes 55 MiB
BUFFER_BYTES = 1 << 18  # for reading lines; a record takes thousands of bytes
FULL = (errno.ENOSPC, errno.EDQUOT)

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
T = TypeVar("T")


class _Schema(msgspec.Struct):
    schema: int


def opened(path: Path) -> BinaryIO:
    """Open a file for reading. Raises OSError, also if it is a link or a pipe.

    A run folder may come from anyone: a link in it would show what lies elsewhere, a pipe would block.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise OSError(errno.EINVAL, "it is not a regular file")
    return path.open("rb", buffering=BUFFER_BYTES)


def read(path: Path) -> bytes:
    """Return a whole file. Raises OSError, also for a file that is not regular or too large."""
    with opened(path) as file:
        text = file.read(MOST_BYTES + 1)
    return _limited(text)


def lines(path: Path) -> Iterator[bytes]:
    """Yield each line with its line end, which the last one may lack. Raises OSError, also for a line too long."""
    with opened(path) as file:
        while line := file.readline(MOST_BYTES + 1):
            yield _limited(line)


def _limited(text: bytes) -> bytes:
    if len(text) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MOST_BYTES >> 20} MiB")
    return text


def written_schema(text: bytes) -> int:
    """Return the schema that a line or a document states. Raises msgspec.DecodeError."""
    return msgspec.json.decode(text, type=_Schema).schema


def load_toml(path: Path, *, hint: str) -> tuple[str, dict[str, Any]]:
    """Return the file's text and its parsed content. Raises UserError, with `hint` if the file cannot be read."""
    try:
        with path.open("rb") as file:
            words = _limited(file.read(MOST_BYTES + 1)).decode("utf-8-sig")
        return words, tomllib.loads(words)
    except OSError as error:
        raise UserError(f"cannot read '{path}': {error.strerror}", hint=hint) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: this is not UTF-8 text", hint="save it as UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        message, _, at = str(error).partition(" (at line ")
        where = at.partition(",")[0] or words.count("\n") + 1
        raise UserError(f"{path}:{where}: this is not TOML: {message}", hint="key = value, one a line") from None


def converted(table: dict[str, Any], kind: type[T], *, path: Path, text: str, hint: str) -> T:
    """Return the content of a TOML file as a struct. Raises UserError with file, line and key, if one is wrong."""
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
        named = re.search(r"field `(\w+)`", message)
        key = named[1] if named else re.sub(r"\[.*?\]", "", place.strip("`").rpartition(".")[2])
        raise UserError(f"{path}:{line_of(text, key)}: {key}: {message}", hint=hint) from None


def line_of(text: str, key: str) -> int:
    """Return the number of the first line of a TOML file that sets a key; 1 if none does."""
    pattern = re.compile(rf"""^\s*["']?{re.escape(key)}["']?\s*[=.]|^\s*\[+\s*{re.escape(key)}\b""")
    return next((number for number, line in enumerate(text.splitlines(), start=1) if pattern.match(line)), 1)


def write(path: Path, text: bytes) -> None:
    """Write a file atomically, replacing a regular file; a link to one is replaced, not followed.

    Raises UserError (exit code 74) if it cannot be written.
    """
    new = beside(path)
    try:
        if not is_replaceable(path):
            raise OSError(errno.EINVAL, "it is not a regular file")
        with new.open("xb") as file:
            file.write(text)
        new.replace(path)
    except OSError as error:
        remove(new)
        hint = "free some space" if error.errno in FULL else "name a file in a folder that may be written to"
        raise UserError(f"cannot write '{path}': {error.strerror}", hint=hint, exit_code=74) from error


def beside(path: Path) -> Path:
    """Return a hidden name in the same folder, for a file that is being made."""
    return path.with_name(f".{path.name}.{secrets.token_hex(3)}.new")


def sweep(folder: Path) -> None:
    """Remove what killed processes were making in a folder. Call it under the folder's lock."""
    for path in folder.glob(".*.new"):
        remove(path)


def remove(path: Path) -> None:
    """Remove a file or a whole folder as far as possible, without raising."""
    with suppress(OSError):  # it is gone, its name is too long, or nothing can be changed here
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def is_regular(path: Path) -> bool:
    """Whether a path is a file, and neither it nor its folder is a link. Raises OSError if access is denied."""
    return path.is_file() and not path.is_symlink() and not path.parent.is_symlink()


def is_replaceable(path: Path) -> bool:
    """Whether a path is free, a regular file, or a link to one: never a device, a pipe or a folder."""
    return os.path.isfile(path) or not os.path.lexists(path)  # both return False for a name that is too long


def hide(text: str) -> str:
    """Return the text without the values of secret environment variables and without secrets of known shapes."""
    values = {value for name, value in os.environ.items() if NAME.search(name) and len(value) >= SHORTEST}
    written = values | {repr(value)[1:-1] for value in values} | {json.dumps(value)[1:-1] for value in values}
    for value in sorted(written, key=len, reverse=True):  # the longest first, since a value may begin with another
        text = text.replace(value, HIDDEN)
    for shape in SHAPES:
        text = shape.sub(rf"\1{HIDDEN}", text)
    return KEY_BLOCK.sub(HIDDEN, text)


def hide_bytes(data: bytes) -> bytes:
    """Return bytes with the same secrets hidden; they need not be text, and all other bytes stay as they are."""
    return hide(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def has_secret(text: str) -> bool:
    """Whether a text has a secret, or a `key=value` with a secret's name and a value that is no number or boolean."""
    named = any(OPTION_NAME.search(key) and not HARMLESS.fullmatch(value) for key, value in OPTION.findall(text))
    return named or hide(text) != text
