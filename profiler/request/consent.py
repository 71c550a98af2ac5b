"""Consent: a word from a file counts only if it is in gcprof's own tables, or if the user typed the same word.

Run folders and sweep files may come from anyone. To decide this, nothing is imported or opened, nothing outside of the
run folder is looked at, and no name in these files is resolved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import UNSET

from profiler.core import catalogue, plan_file, safe_files
from profiler.core.case import SETTINGS, Case, Choice, split_choices
from profiler.core.catalogue import Entry, Option
from profiler.core.errors import UserError
from profiler.core.stats import Sampling
from profiler.request.device_choice import any_device
from profiler.request.spec import PRECISIONS, TABLES, Request

MEMBER = re.compile(r"[A-Za-z0-9]\w*(?:[.-]\w+)*", re.ASCII)  # a family's member: resnet18, vit_base_patch16_224.augreg
WORDS = re.compile(r"\w+(?:\+\w+)*", re.ASCII)  # the value of an option of our own: own, 224, matmul+gelu, 16+32
PATTERN = re.compile(r"[\w.*?\[\]!,-]{1,200}", re.ASCII)  # a pattern of module names: model.layers.*
LOADS = re.compile(  # options that make other libraries load weights or code, by a number or `true`
    r"_.*|(?:.*_)?(?:pretrained|trust|remote|hub|download|weights|kernels)(?:_.*)?", re.IGNORECASE
)
FILES = {"plan": "file"}  # the option that names a strategy's file; it may be one of the run folder's own plans
Check = Callable[[Any, Path | None], bool]  # whether a value is plain, given the run folder that it is from


def is_plain(choice: Choice, table: Mapping[str, str], folder: Path | None = None) -> bool:
    """Whether a choice is in gcprof's tables, with options that no library takes for code or a place.

    Raises UserError for options that cannot be read.
    """
    member = choice.name.partition(":")[2]
    entry = catalogue.listed(choice.name, table)
    if entry is None or (member and not MEMBER.fullmatch(member)):
        return False
    if entry.name in FILES and FILES[entry.name] not in choice.options:
        return False  # its default is a file in the current folder
    declared = {option.name: option for option in entry.options}
    return all(_is_plain_option(entry, key, text, declared.get(key), folder) for key, text in choice.options.items())


def _is_plain_option(entry: Entry, key: str, text: str, option: Option | None, folder: Path | None) -> bool:
    """Whether the value of an option cannot be a name, except one of gcprof's own."""
    if option is None:
        return entry.open and not LOADS.fullmatch(key) and _is_number(text)
    if FILES.get(entry.name) == key:
        return folder is not None and _is_plan_of(folder, Path(text))
    return (
        WORDS.fullmatch(text) is not None
        if option.kind == "str"
        else option.kind in catalogue.PLAIN or bool(option.words)
    )


def _is_number(text: str) -> bool:
    value = catalogue.literal(text)
    return value is None or isinstance(value, bool | int | float)


def _is_plan_of(folder: Path, file: Path) -> bool:
    """Whether a path is a regular file directly in the plans folder of a run folder, and neither is a link."""
    plans = folder.absolute() / plan_file.FOLDER
    is_below = ".." not in file.parts and file.absolute().parent == plans
    return is_below and safe_files.is_regular(file)


def _is_choice(choice: Any, folder: Path | None, *, table: Mapping[str, str]) -> bool:
    return choice is UNSET or is_plain(choice, table, folder)


def _is_one_of(word: Any, _: Path | None, *, words: tuple[str, ...]) -> bool:
    return word is UNSET or word in words


def _is_pattern(word: Any, _: Path | None) -> bool:
    return word is None or PATTERN.fullmatch(word) is not None


def _is_device(word: Any, _: Path | None) -> bool:
    try:
        return bool(any_device(word))
    except UserError:
        return False


def _has_no_word(value: Any, _: Path | None) -> bool:
    return value is None or value is UNSET or isinstance(value, bool | int | float | Sampling)


FIELDS: dict[str, Check] = {  # of a case, that may hold a word; the others hold none
    **{name: partial(_is_choice, table=table) for name, table in TABLES.items()},
    "blocks": _is_pattern,
    "device": _is_device,
    "data": partial(_is_one_of, words=("synthetic", "files")),  # the folder of files must always be typed
    "precision": partial(_is_one_of, words=PRECISIONS),
    **{name: partial(_is_one_of, words=setting.choices) for name, setting in SETTINGS.items() if setting.choices},
}
FLAGS = {
    "model": "model",
    "strategies": "strategy",
    "optimizer": "optimizer",
    "parallel": "parallel",
    "blocks": "blocks",
}


def unnamed(cases: Iterable[Case], *, folder: Path | None, named: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Return the words of these cases that must be typed and were not, each once, by the field of the case.

    `folder` is the run folder that they are from, `named` the words that were typed, by field. Raises UserError for
    options that cannot be read.
    """
    words = {}
    for name in Case.__struct_fields__:
        check, typed = FIELDS.get(name, _has_no_word), set(named.get(name, ()))
        values = dict.fromkeys(getattr(case, name) for case in cases)
        untyped = [str(value) for value in values if value not in typed and not check(value, folder)]
        if untyped:
            words[name] = untyped
    return words


def refuse_file(asked: Request, typed: Request, *, path: Path) -> None:
    """Raise UserError if a word of a sweep file names code, a file or a folder, and the user did not type it."""
    words = {
        key: str(getattr(asked, key)) for key in (*FLAGS, "data") if getattr(asked, key) and not getattr(typed, key)
    }
    for key, text in words.items():
        if not _is_plain_text(key, text):
            message = f"{path}: {key} = '{text}' names code or a place that is not gcprof's own"
            raise UserError(message, hint=f"if it is meant, type it: --{key} '{text}'")


def _is_plain_text(key: str, text: str) -> bool:
    if key == "data":
        return False
    if key == "blocks":
        return _is_pattern(text, None)
    return all(FIELDS[FLAGS[key]](choice, None) for choice in split_choices(text))
