"""Code that a run folder names: it runs only where the user names it again. Knows nothing of how trials are run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING

from profiler.cli.output import COMMAND
from profiler.core.errors import UserError

if TYPE_CHECKING:
    from profiler.core.case import Case, Choice
    from profiler.runs.store import Run


def refuse_unnamed(cases: Iterable[Case], named: Iterable[Choice] = ()) -> None:
    """Raises UserError for a model of the user's own that they did not name: a folder may be anyone's, and so its code.

    Nothing is imported to see this. Digests in the folder are no consent: who wrote its plan could write them too.
    """
    unnamed = _code(cases) - set(named)
    if unnamed:
        models = ",".join(dict.fromkeys(case.model for case in cases))
        again = shlex.join(["gcprof", *COMMAND.get(), "--model", models])
        raise _refusal(min(unnamed), hint=f"if this is your own code: {again}")


def refuse_code(case: Case, target: str) -> None:
    """Raises UserError for a case of a user's own model: where a run is read, its code cannot be named besides."""
    if _code([case]):
        words = [str(case.model) if word == target else word for word in COMMAND.get()]
        raise _refusal(case.model, hint=f"name the code itself: {shlex.join(['gcprof', *words])}")


def resume_words(run: Run, data: str | None = None) -> list[str]:
    """The command that goes on with a run, with what the user must say again."""
    cases = [trial.case for trial in run.manifest.plan]
    models = ["--model", ",".join(dict.fromkeys(case.model for case in cases))] if _code(cases) else []
    return ["gcprof", "run", "--resume", str(run.folder), *models, *(["--data", data] if data else []), *_engine()]


def _engine() -> list[str]:
    """Where the trials of the command at work run, where it says so."""
    words = COMMAND.get()
    given = [word for before, word in zip(["", *words], words, strict=False) if before == "--engine"]
    joined = [word.partition("=")[2] for word in words if word.startswith("--engine=")]
    return ["--engine", (given + joined)[-1]] if given + joined else []


def _refusal(model: Choice, *, hint: str) -> UserError:
    return UserError(f"this run is of the code '{model}', and nothing that a run folder names is run", hint=hint)


def _code(cases: Iterable[Case]) -> set[Choice]:
    """The models that are users' own."""
    from profiler.core import catalogue
    from profiler.training import models

    return {case.model for case in cases if catalogue.is_code(case.model.name, models.TABLE)}
