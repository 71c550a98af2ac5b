"""Consent: a word from a file counts only if it is in gcprof's own tables, or if the user typed the same word.

Run folders and sweep files, and the code that they name, may come from anyone. To decide this, nothing is imported or
opened, nothing outside of the run folder is looked at, and no name in these files is resolved.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import UNSET

from profiler.core import catalogue, plan_file, safe_files
from profiler.core.case import Case, Choice, split_choices
from profiler.core.catalogue import Entry, Option
from profiler.core.errors import UserError
from profiler.runs import run_folder, store
from profiler.runs.store import Run
from profiler.training import LEVERS
from profiler.workflows.spec import TABLES, Request

MEMBER = re.compile(r"[A-Za-z0-9]\w*(?:[.-]\w+)*", re.ASCII)  # a family's member: resnet18, vit_base_patch16_224.augreg
WORDS = re.compile(r"\w+(?:\+\w+)*", re.ASCII)  # the value of an option of our own: own, 224, matmul+gelu, 16+32
LOADS = re.compile(  # options that make other libraries load weights or code, by a number or `true`
    r"_.*|(?:.*_)?(?:pretrained|trust|remote|hub|download|weights|kernels)(?:_.*)?", re.IGNORECASE
)
FLAGS = {"model": "model", "strategies": "strategy", "optimizer": "optimizer", "parallel": "parallel"}
SETTINGS = ("model", "optimizer", "batch_size", "precision", "accumulate", "blocks")  # of a run, for another command
Words = dict[str, list[str]]  # by the field of a case


def is_plain(choice: Choice, table: Mapping[str, str], folder: Path | None = None) -> bool:
    """Whether a choice is in gcprof's tables, with options that no library takes for code or a place.

    Raises UserError for options that cannot be read.
    """
    member = choice.name.partition(":")[2]
    entry = catalogue.listed(choice.name, table)
    if entry is None or (member and not MEMBER.fullmatch(member)):
        return False
    if entry.name == "plan" and "file" not in choice.options:
        return False  # its default is a file in the current folder
    declared = {option.name: option for option in entry.options}
    return all(_is_plain_option(entry, key, text, declared.get(key), folder) for key, text in choice.options.items())


def _is_plain_option(entry: Entry, key: str, text: str, option: Option | None, folder: Path | None) -> bool:
    """Whether the value of an option cannot be a name, except one of gcprof's own."""
    if option is None:
        value = catalogue.literal(text)
        return entry.open and not LOADS.fullmatch(key) and (value is None or isinstance(value, bool | int | float))
    if (entry.name, key) == ("plan", "file"):  # it may be one of the run folder's own plans
        if folder is None:
            return False
        file, plans = Path(text), folder.absolute() / plan_file.FOLDER  # directly in it, and neither is a link
        return ".." not in file.parts and file.absolute().parent == plans and safe_files.is_regular(file)
    return (
        WORDS.fullmatch(text) is not None
        if option.kind == "str"
        else option.kind in catalogue.PLAIN or bool(option.words)
    )


def unnamed_words(cases: Iterable[Case], *, folder: Path | None, named: Mapping[str, Iterable[str]]) -> Words:
    """Return the words of these cases that must be typed and were not, each once, by the field of the case.

    Only the fields of TABLES can lead to code or files. `folder` is the run folder that the cases are from, `named` the
    words that were typed, by field. Raises UserError for options that cannot be read.
    """
    words = {}
    for name, table in TABLES.items():
        typed = set(named.get(name, ()))
        choices = dict.fromkeys(getattr(case, name) for case in cases)
        untyped = [one for one in choices if one is not UNSET and one not in typed and not is_plain(one, table, folder)]
        if untyped:
            words[name] = [str(choice) for choice in untyped]
    return words


def refuse_file(asked: Request, typed: Request, *, path: Path) -> None:
    """Raise UserError if a word of a sweep file names code, a file or a folder, and the user did not type it."""
    for key in (*FLAGS, "data"):
        text = getattr(asked, key)
        if not text or getattr(typed, key):
            continue
        known = {**TABLES.get(FLAGS.get(key, ""), {}), **LEVERS}  # a lever leads nowhere, nor does one alone
        if key == "data" or not all(is_plain(choice.parts[0], known) for choice in split_choices(text)):
            message = f"{path}: {key} = '{text}' names code or a place that is not gcprof's own"
            raise UserError(message, hint=f"if it is meant, type it: --{key} '{text}'")


def resume_words(run: Run, *, engine: str = "local", data: str | None = None) -> list[str]:
    """Return the command that resumes a run, with what the user must type again."""
    where = ["--engine", engine] if engine != "local" else []
    again = _again(run, needs_naming(run))
    return ["gcprof", "run", "--resume", str(run.folder), *again, *(["--data", data] if data else []), *where]


def refuse_unnamed(run: Run, named: Mapping[str, Collection[str]], typed: Sequence[str]) -> None:
    """Raise UserError if a word of a run's plan leads to code or files, and the user did not type it.

    `named` are the words that were typed, by the field of a case. Nothing is imported or opened for this. Digests in
    the folder are no consent: who wrote its plan could write them too.
    """
    unnamed = unnamed_words(_cases(run), folder=run.folder, named=named)
    _refuse(unnamed, hint=f"if this is your own code: {shlex.join(['gcprof', *typed, *_again(run, unnamed)])}")


def refuse_cases(cases: Iterable[Case], target: str, *, named: Iterable[Choice]) -> None:
    """Raise UserError if words of these cases of the run `target` lead to code or files; strategies can be named."""
    unnamed = unnamed_words([*cases], folder=run_folder(target), named={"strategy": set(named)})
    _refuse(unnamed, hint="name the model and its settings instead of the run")


def needs_naming(run: Run) -> Words:
    """Return the words of a run's plan that a user must type again, by the field of a case."""
    return unnamed_words(_cases(run), folder=run.folder, named={})


def words_of(word: str) -> dict[str, str]:
    """Return the model and settings of the run of this name as one types them, several of one joined by commas.

    Raises UserError for a script's run, and for a run whose words lead to code.
    """
    run = store.load(run_folder(word))
    if run.is_script:
        message = f"'{word}' is the run of a script, and this command takes a model"
        raise UserError(message, hint=f"gcprof show {word} names its command")
    cases = list(dict.fromkeys(case.baseline for case in _cases(run)))
    refuse_cases(cases, word, named=())
    values = {field: dict.fromkeys(getattr(case, field) for case in cases) for field in SETTINGS}
    return {field: ",".join(map(str, of)) for field, of in values.items() if not {None, UNSET} & {*of}}


def _cases(run: Run) -> list[Case]:
    return list(dict.fromkeys(trial.case for trial in run.manifest.plan))


def _again(run: Run, unnamed: Words) -> list[str]:
    """Return the flags that name these words; --model takes all models of the run."""
    models = {"model": list(dict.fromkeys(str(case.model) for case in _cases(run)))} if "model" in unnamed else {}
    named = {**unnamed, **models}
    return [part for key, field in FLAGS.items() if field in named for part in (f"--{key}", ",".join(named[field]))]


def _refuse(unnamed: Words, *, hint: str) -> None:
    for field, (word, *_) in unnamed.items():
        message = (
            f"the {field} of this run is '{word}', which is not gcprof's own: gcprof does not run code just because"
        )
        raise UserError(f"{message} a run folder names it", hint=hint)
