"""Consent: a word from a file counts only if it is in gcprof's own tables, or if the user typed the same word.

Run folders and sweep files, and the code that they name, may come from anyone. To decide this, nothing is imported or
opened, nothing outside of the run folder is looked at, and no name in these files is resolved.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import UNSET

from profiler.core import catalogue, plan_file, safe_files
from profiler.core.case import FAKE, SETTINGS, SWITCHES, Case, Choice, split_choices
from profiler.core.catalogue import Entry, Option
from profiler.core.errors import UserError
from profiler.core.stats import Sampling
from profiler.request.device_choice import any_device
from profiler.request.spec import PRECISIONS, TABLES, Request, flags
from profiler.runs.find import run_folder
from profiler.runs.store import Run

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


def unnamed_words(
    cases: Iterable[Case], *, folder: Path | None, named: Mapping[str, Iterable[str]]
) -> dict[str, list[str]]:
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


def resume_words(run: Run, typed: Sequence[str] = (), data: str | None = None) -> list[str]:
    """Return the command that resumes a run, with what the user must type again."""
    again = _again(run, needs_naming(run))
    return ["gcprof", "run", "--resume", str(run.folder), *again, *(["--data", data] if data else []), *_engine(typed)]


def _case_words(case: Case) -> list[str]:
    """Return the flags of a case's settings that are not defaults, for a command that traces its model by name."""
    usual = {
        "optimizer": "sgd",
        "precision": "fp32",
        "accumulate": 1,
        "blocks": None,
        "routing": UNSET,
        "device": "cuda",
    }
    device = case.device if case.is_rehearsed else case.foreseen.device.removeprefix(FAKE)
    of_case = {**{name: getattr(case, name) for name in usual}, "batch_size": case.batch_size, "device": device}
    switches = {switch.key or name: getattr(case, name) is True or None for name, switch in SWITCHES.items()}
    words = {name: str(value) for name, value in of_case.items() if value != usual.get(name)}
    return flags(Request(**words, **switches))


def refuse_unnamed(run: Run, named: Mapping[str, Collection[str]], typed: Sequence[str]) -> None:
    """Raise UserError if a word of a run's plan leads to code or files, and the user did not type it.

    `named` are the words that were typed, by the field of a case. Nothing is imported or opened for this. Digests in
    the folder are no consent: who wrote its plan could write them too.
    """
    unnamed = unnamed_words(_cases(run), folder=run.folder, named=named)
    if unnamed:
        again = _again(run, unnamed)
        own = f"if this is your own code: {shlex.join(['gcprof', *typed, *again])}"
        raise _refusal(unnamed, hint=own if again else "this run cannot be resumed")


def refuse_cases(cases: Iterable[Case], target: str, *, named: Iterable[Choice], typed: Sequence[str]) -> None:
    """Raise UserError if words of these cases of the run `target` lead to code or files; only strategies can be named.

    The command that the hint names takes the model and its settings from the user, instead of from the run.
    """
    cases = list(cases)
    unnamed = unnamed_words(cases, folder=run_folder(target), named={"strategy": set(named)})
    if unnamed:
        case = cases[0]
        words = [str(case.model) if word == target else word for word in [*typed, *_case_words(case)]]
        raise _refusal(unnamed, hint=f"name the model and its settings: {shlex.join(['gcprof', *words])}")


def needs_naming(run: Run) -> dict[str, list[str]]:
    """Return the words of a run's plan that a user must type again, by the field of a case."""
    return unnamed_words(_cases(run), folder=run.folder, named={})


def _cases(run: Run) -> list[Case]:
    return list(dict.fromkeys(trial.case for trial in run.manifest.plan))


def _again(run: Run, unnamed: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the flags that name these words (--model: all models of the run); [] if a word has no flag."""
    if unnamed.keys() - set(FLAGS.values()):
        return []
    words = dict(unnamed)
    if "model" in words:
        words["model"] = list(dict.fromkeys(str(case.model) for case in _cases(run)))
    flags = {field: f"--{key}" for key, field in FLAGS.items()}
    return [part for field, named in words.items() for part in (flags[field], ",".join(named))]


def _engine(typed: Sequence[str]) -> list[str]:
    """Return the --engine option of the command, if it has one."""
    engines = [word for before, word in zip(["", *typed], typed, strict=False) if before == "--engine"]
    joined = [word.partition("=")[2] for word in typed if word.startswith("--engine=")]
    return ["--engine", (engines + joined)[-1]] if engines + joined else []


def _refusal(unnamed: Mapping[str, Sequence[str]], *, hint: str) -> UserError:
    field, (word, *_) = next(iter(unnamed.items()))
    message = (
        f"the {field} of this run is '{word}', which is not gcprof's own: gcprof does not run code just because a "
        "run folder names it"
    )
    return UserError(message, hint=hint)
