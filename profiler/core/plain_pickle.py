"""Reads pickles of plain data: numbers, text, lists, dicts and the like. No class and no function is ever looked up."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from profiler.core.errors import UserError

PLAIN = {  # opcodes that build plain data or only rearrange it
    "PROTO", "STOP", "FRAME", "MARK", "POP", "POP_MARK", "DUP", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT",
    "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "LIST", "APPEND",
    "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_SET", "ADDITEMS", "FROZENSET", "GET",
    "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE",
}  # fmt: skip
MOST_BYTES = 4 * 2**30
BROKEN = (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, KeyError, IndexError, MemoryError)


def load(path: Path) -> Any:
    """Return the plain data in a pickle. Raises UserError if the file cannot be read or contains anything else."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UserError(f"{path} is larger than 4 GiB", hint="record fewer entries: max_entries=100000")
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return _Unpickler(io.BytesIO(content)).load()
    except BROKEN as error:
        raise UserError(f"{path} is not a pickle of plain data: {error}") from None


def _refuse(opcode: str) -> Callable[[Any], None]:
    def refuse(unpickler: Any) -> None:
        raise pickle.UnpicklingError(f"it asks for {opcode}, which plain data do not need")

    return refuse


class _Unpickler(pickle._Unpickler):  # the one in Python: that in C runs all opcodes
    """Accepts only the opcodes of plain data; its memo is a dict, so that a large index allocates no large array."""

    dispatch = {  # noqa: RUF012  as the class has it
        ord(opcode.code): pickle._Unpickler.dispatch[ord(opcode.code)] if opcode.name in PLAIN else _refuse(opcode.name)
        for opcode in pickletools.opcodes
    }

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, number: Any) -> Any:
        raise pickle.UnpicklingError("it asks for an object from elsewhere")

    def get_extension(self, code: int) -> Any:
        raise pickle.UnpicklingError("it asks for an object from a registry")
