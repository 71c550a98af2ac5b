"""The words that a user typed: the command that a manifest keeps, those that a hint repeats, and consent to run code.

Code that a run folder names runs only where the user names it again: a folder may be anyone's, and so its code.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from profiler.core import catalogue
from profiler.core.case import Case, Choice
from profiler.core.errors import UserError
from profiler.core.secret_filter import hide
from profiler.runs.store import Run
from profiler.training import models


def command_line(typed: Sequence[str]) -> str:
    """The command, each file and folder by its last name alone, and without secrets."""
    words = ["gcprof"]
    for before, word in pairwise(["gcprof", *typed]):
        alone = before in ("--data", "--config", "--output", "-o")
        flag = "" if alone else (re.match(r"--(data|config|output)=|-o=?|", word) or [""])[0]
        words.append(flag + Path(word[len(flag) :]).name if alone or flag else word)
    return shlex.join(hide(word) for word in words)


def resume_words(run: Run, typed: Sequence[str] = (), data: str | None = None) -> list[str]:
    """The command that goes on with a run, with what the user must say again."""
    cases = [trial.case for trial in run.manifest.plan]
    named = ["--model", ",".join(dict.fromkeys(case.model for case in cases))] if _code(cases) else []
    return ["gcprof", "run", "--resume", str(run.folder), *named, *(["--data", data] if data else []), *_engine(typed)]


def refuse_unnamed(cases: Iterable[Case], named: Iterable[Choice], typed: Sequence[str]) -> None:
    """Raises UserError for a model of the user's own that they did not name.

    Nothing is imported to see this. Digests in the folder are no consent: who wrote its plan could write them too.
    """
    unnamed = _code(cases) - set(named)
    if unnamed:
        every = ",".join(dict.fromkeys(case.model for case in cases))
        again = shlex.join(["gcprof", *typed, "--model", every])
        raise _refusal(min(unnamed), hint=f"if this is your own code: {again}")


def refuse_code(case: Case, target: str, typed: Sequence[str]) -> None:
    """Raises UserError for a case of a user's own model: where a run is read, its code cannot be named besides."""
    if _code([case]):
        device = ["--device", case.device] if case.is_rehearsed else []
        words = [str(case.model) if word == target else word for word in [*typed, *device]]
        raise _refusal(case.model, hint=f"name the code itself: {shlex.join(['gcprof', *words])}")


def _engine(typed: Sequence[str]) -> list[str]:
    """Where the trials of the command run, where it says so."""
    engines = [word for before, word in zip(["", *typed], typed, strict=False) if before == "--engine"]
    joined = [word.partition("=")[2] for word in typed if word.startswith("--engine=")]
    return ["--engine", (engines + joined)[-1]] if engines + joined else []


def _refusal(model: Choice, *, hint: str) -> UserError:
    return UserError(f"this run is of the code '{model}', and nothing that a run folder names is run", hint=hint)


def _code(cases: Iterable[Case]) -> set[Choice]:
    """The models that are users' own."""
    return {case.model for case in cases if catalogue.is_code(case.model.name, models.TABLE)}
