"""Errors of the user or the machine in one line; libraries that may be missing; which code is the user's own."""

from __future__ import annotations

import importlib
import re
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from traceback import walk_tb
from types import FrameType, ModuleType
from typing import Any, TypeVar

EXTRAS = ("pyarrow", "tensorboard", "wandb", "mlflow", "submitit", "ray")  # each by the name that pip has for it
BROKEN = (ImportError, OSError, AttributeError, TypeError, ValueError, RuntimeError, SyntaxError)  # if it is damaged
Word = TypeVar("Word", str, str | None)
MOST_MEANT = 3  # most words in a hint
LIKE = 0.65  # ratio of difflib from which a word may be meant: one wrong letter of three

OURS = Path(__file__).parents[1]
MODELS = OURS / "training" / "models"
ADAPTER = MODELS / "user.py"  # which only calls the user's code
INSTALLED = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib"))
ELSEWHERE = re.compile(r"[\\/](?:site|dist)-packages[\\/]|[\\/]lib[\\/]python3\.\d+[\\/]|^\?\?$")  # ??: C++ code


class UserError(Exception):
    """A request that cannot be carried out: what is wrong with which value, and what to try.

    Caught once, in the command line, which prints one line and ends with `exit_code`
    (2 usage, 3 no such device, 4 unreadable results, 74 cannot write).
    """

    def __init__(self, message: str, *, hint: str | None = None, exit_code: int = 2) -> None:
        super().__init__(message)
        if hint is not None:
            self.add_note(f"hint: {hint}")  # Python shows it below the message if nothing catches the error
        self.message = message
        self.hint = hint
        self.exit_code = exit_code

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the message and the hint, as the command line does."""
        return [f"gcprof: {self.message}", *([f"hint: {self.hint}"] if self.hint else [])]


class Unsupported(Exception):
    """A strategy cannot be applied to this model; its row is recorded as skipped, with this reason."""


class NotOnce(Unsupported):
    """The blocks do not each run exactly once, in order."""


class Invalid(Exception):
    """A step trains nothing; its row is recorded as invalid, with this reason and without numbers."""


class Exited(Exception):
    """The user's code called sys.exit, which must not end the measuring process."""


CODE_ALONE = "it prints the code alone; leave one of them out"  # what --emit does


def refuse_idle(flags: Mapping[str, object], why: str, *, hint: str = "leave one of them out") -> None:
    """Raise UserError for the first of these flags that was given: it would have no effect, and `why` says where."""
    for flag, is_given in flags.items():
        if is_given:
            raise UserError(f"{flag} has no effect {why}", hint=hint)


def nearest(word: str, words: Iterable[str], *, before: str = "", after: str = "") -> str | None:
    """Return a hint with the known words nearest to this one, as users would type them; None if none is near.

    `before` and `after` are typed around the word, such as an option before it or a value after it.
    """
    meant = " or ".join(f"'{before}{name}{after}'" for name in similar(word, words))
    return f"did you mean {meant}?" if meant else None


def nearest_or_all(word: str, words: Iterable[str], *, before: str = "", after: str = "") -> str:
    """Return the hint of `nearest`, or a hint with all known words if none is near."""
    names = list(words)
    return nearest(word, names, before=before, after=after) or f"choose from {', '.join(names) or 'none'}"


def one_of(word: Word, choices: Iterable[str], *, flag: str) -> Word:
    """Return the word if it is one of the choices of a flag, or None; else raise UserError."""
    names = list(choices)
    if word is not None and word not in names:
        raise UserError(f"{flag} cannot be '{word}'", hint=nearest_or_all(word, names, before=f"{flag} "))
    return word


def similar(word: str, words: Iterable[str]) -> list[str]:
    """Return up to three known words that the user may have meant: those that begin so, else the most similar one.

    Four letters may also be inside: `2080ti` is `rtx-2080-ti`. Hyphens, underscores and spaces are easily left out.
    """
    plain = {name: re.sub(r"[-_\s]", "", name.lower()) for name in dict.fromkeys((word, *words))}
    typed = plain.pop(word)
    if word in words:
        return [word]
    begun = [
        name
        for name, letters in plain.items()
        if len(typed) > 1 and (letters.startswith(typed) or (len(typed) > 3 and typed in letters))
    ]
    whole = [name for name in begun if plain[name] == typed]
    near = get_close_matches(typed, plain.values(), n=1, cutoff=LIKE)
    return whole[:1] or begun[:MOST_MEANT] or [name for name, letters in plain.items() if letters in near][:1]


def load_module(module: str, *, needs: str | None = None) -> ModuleType:
    """Import and return a module of gcprof that needs an optional library.

    `needs` names a library that is installed with gcprof and used only for pictures or pages: it is imported first, to
    test it. Raises UserError that says what to install: with exit code 2 if an extra is missing, with 1 if `needs` is
    missing or broken (what was measured is kept all the same).
    """
    try:
        if needs:
            importlib.import_module(needs)
    except BROKEN as error:
        message = f"{needs} does not work here: {error}"
        raise UserError(message, hint=f"pip install --force-reinstall {needs}", exit_code=1) from error
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        raise UserError(f"this needs {library}", hint=f"pip install {library}") from error


def load_function(target: str) -> Any:
    """Import and return the function that a table names as `package.module:function`. Raises UserError as
    `load_module`."""
    module, _, attribute = target.partition(":")
    return getattr(load_module(module), attribute)


@cache
def is_theirs(filename: str) -> bool:
    """Whether a file in a traceback, of this machine or another, is neither a library's nor the profiler's."""
    return not is_ours(filename) and not filename.startswith((*INSTALLED, "<")) and not ELSEWHERE.search(filename)


@cache
def is_ours(filename: str) -> bool:
    """Whether a file is the profiler's; built-in models count as the user's, since they are what is measured."""
    path = Path(filename)
    return path.is_relative_to(OURS) and (path == ADAPTER or not path.is_relative_to(MODELS))


def shipped(*parts: str) -> Path:
    """Return the path of a folder that comes with gcprof: in the installed package, else next to it in the checkout."""
    installed = OURS.joinpath(*parts)
    return installed if installed.is_dir() else OURS.parent.joinpath(*parts)


def exited(error: SystemExit) -> Exited:
    """Return the error to raise if the user's code called sys.exit, with its message or the one given to argparse."""
    code = error.code
    said = None if isinstance(code, int | None) else str(code)
    for frame, _ in walk_tb(error.__traceback__) if said is None else ():
        if frame.f_code.co_name == "error" and Path(frame.f_code.co_filename).name == "argparse.py":
            said = said or str(frame.f_locals.get("message"))  # ArgumentParser.error exits with 2
    call = f"sys.exit({'' if code is None else code})" if isinstance(code, int | None) else "sys.exit"
    text = f"the model's code called {call}" + (f": {said}" if said else "")
    return Exited(text).with_traceback(error.__traceback__)


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and all its callers, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def users_line(frame: FrameType | None) -> str | None:
    """Return the innermost line of the user's code as `train.py:12`; None if there is none."""
    for caller in frames(frame):
        path = caller.f_code.co_filename
        if is_theirs(path):
            return f"{Path(path).name}:{caller.f_lineno}"
    return None


def innermost_line(error: BaseException) -> str | None:
    """Return the innermost line of the user's code in an error's traceback, as `train.py:12`; None if there is none."""
    lines = [(frame.f_code.co_filename, number) for frame, number in walk_tb(error.__traceback__)]
    theirs = [f"{Path(path).name}:{number}" for path, number in lines if is_theirs(path)]
    return theirs[-1] if theirs else None
