"""Words that a user typed: the command in a manifest, the commands in hints, and consent to run code.

Code that a run folder names runs only if the user names it again: a folder, and so its code, may come from anyone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from profiler.core.case import FAKE, SWITCHES, Case, Choice
from profiler.core.errors import UserError
from profiler.core.secret_filter import hide
from profiler.request import consent
from profiler.request.spec import Request
from profiler.runs.find import run_folder
from profiler.runs.store import Run

MODEL_FLAGS = ("optimizer", "batch_size", "precision", "accumulate", "blocks", "routing", "device")


def flag(name: str) -> str:
    """A field as users write it: batch_size -> --batch-size."""
    return f"--{name.replace('_', '-')}"


def setting_words(words: Request, *, device: str | None) -> list[str]:
    """Return the flags of a model's settings as they were typed, and the device, for the next command."""
    asked = [(name, device if name == "device" else getattr(words, name)) for name in MODEL_FLAGS]
    switches = [switch.key or field for field, switch in SWITCHES.items()]
    return [
        *(word for name, value in asked if value is not None for word in (flag(name), str(value))),
        *(flag(key) for key in switches if getattr(words, key)),
    ]


def case_words(case: Case) -> list[str]:
    """Return the flags of a case's settings that are not defaults, for a command that traces its model by name."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(Case)}
    defaults |= {"batch_size": None, "optimizer": "sgd", "device": "cuda"}
    device = case.device if case.is_rehearsed else case.foreseen.device.removeprefix(FAKE)
    values = {name: device if name == "device" else getattr(case, name) for name in MODEL_FLAGS}
    return [
        *(word for name, value in values.items() if value != defaults[name] for word in (flag(name), str(value))),
        *(flag(switch.key or name) for name, switch in SWITCHES.items() if switch.help and getattr(case, name)),
    ]


def command_line(typed: Sequence[str]) -> str:
    """Return the command, without secrets and with only the last name of the files and folders that options name."""
    words = ["gcprof"]
    for before, word in pairwise(["gcprof", *typed]):
        alone = before in ("--data", "--config", "--output", "-o")
        flag = "" if alone else (re.match(r"--(data|config|output)=|-o=?|", word) or [""])[0]
        words.append(flag + Path(word[len(flag) :]).name if alone or flag else word)
    return shlex.join(hide(word) for word in words)


def resume_words(run: Run, typed: Sequence[str] = (), data: str | None = None) -> list[str]:
    """Return the command that resumes a run, with what the user must type again."""
    again = _again(run, needs_naming(run))
    return ["gcprof", "run", "--resume", str(run.folder), *again, *(["--data", data] if data else []), *_engine(typed)]


def refuse_unnamed(run: Run, named: Mapping[str, Collection[str]], typed: Sequence[str]) -> None:
    """Raise UserError if a word of a run's plan leads to code or files, and the user did not type it.

    `named` are the words that were typed, by the field of a case. Nothing is imported or opened for this. Digests in
    the folder are no consent: who wrote its plan could write them too.
    """
    unnamed = consent.unnamed(_cases(run), folder=run.folder, named=named)
    if unnamed:
        again = _again(run, unnamed)
        own = f"if this is your own code: {shlex.join(['gcprof', *typed, *again])}"
        raise _refusal(unnamed, hint=own if again else "this run cannot be resumed")


def refuse_cases(cases: Iterable[Case], target: str, *, named: Iterable[Choice], typed: Sequence[str]) -> None:
    """Raise UserError if words of these cases of the run `target` lead to code or files; only strategies can be named.

    The command that the hint names takes the model and its settings from the user, instead of from the run.
    """
    cases = list(cases)
    unnamed = consent.unnamed(cases, folder=run_folder(target), named={"strategy": set(named)})
    if unnamed:
        case = cases[0]
        words = [str(case.model) if word == target else word for word in [*typed, *case_words(case)]]
        raise _refusal(unnamed, hint=f"name the model and its settings: {shlex.join(['gcprof', *words])}")


def needs_naming(run: Run) -> dict[str, list[str]]:
    """Return the words of a run's plan that a user must type again, by the field of a case."""
    return consent.unnamed(_cases(run), folder=run.folder, named={})


def _cases(run: Run) -> list[Case]:
    return list(dict.fromkeys(trial.case for trial in run.manifest.plan))


def _again(run: Run, unnamed: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the flags that name these words (--model: all models of the run); [] if a word has no flag."""
    if unnamed.keys() - set(consent.FLAGS.values()):
        return []
    words = dict(unnamed)
    if "model" in words:
        words["model"] = list(dict.fromkeys(str(case.model) for case in _cases(run)))
    flags = {field: f"--{key}" for key, field in consent.FLAGS.items()}
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
