"""What users write -> what is meant, and the words back to them: knows nothing of any one command."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiler.core.errors import UserError, nearest

if TYPE_CHECKING:
    from profiler.core.case import Trial
    from profiler.core.record import Environment
    from profiler.views.tables.terminal import Printed

COMMAND: ContextVar[Sequence[str]] = ContextVar("COMMAND", default=())  # the words of the command at work
RUN_HELP = "A run folder, its name below results/, `last`, or `ref:NAME` of `gcprof list --ref`."


def one_of(word: str, known: Iterable[str], *, flag: str) -> str:
    """The word, where it is one of those that a flag takes. Raises UserError."""
    names = list(known)
    if word not in names:
        hint = nearest(word, names) or f"choose from {', '.join(names)}"
        raise UserError(f"{flag} cannot be '{word}'", hint=hint)
    return word


def usage(error: Any) -> tuple[str, str | None]:
    """A complaint of click's in our words: the message, and the nearest flag or command or where to read on."""
    message = re.split(r"\s*\(Possible options:|\s*Did you mean|\s*\(Did you mean", error.format_message())[0]
    message = message[:1].lower() + message[1:]
    context = error.ctx
    if context is None:
        return message, None
    command = re.match(r"no such command '(.*)'", message)
    flag = getattr(error, "option_name", "")
    if command:
        near = nearest(command[1], context.command.commands)
    else:
        near = nearest(flag, {name for parameter in context.command.params for name in parameter.opts} - {flag})
    return message, near or f"{context.command_path} --help"


def width(asked: int | None = None) -> int | None:
    """The width to print at: as asked, the terminal's, or None (as wide as it takes) into a pipe or a file."""
    import shutil

    return asked or (shutil.get_terminal_size().columns if sys.stdout.isatty() else None)


def say(text: Printed) -> None:
    """Print a result."""
    from profiler.views.tables.terminal import write

    write(text, file=sys.stdout)


def say_bytes(text: bytes) -> None:
    """Print a document as it is."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


def say_failure(code: int) -> None:
    """With --json, stdout holds one document also where nothing could be run."""
    from profiler.views.export.json import document

    say_bytes(document(None, [], status="failed", exit_code=code))


def encoding() -> str:
    return sys.stdout.encoding or "utf-8"


def aside(text: str) -> None:
    """Tell, beside the result."""
    from profiler.views.sanitize import plain

    print(plain(text), file=sys.stderr)


def next_command(*words: str) -> None:
    """The one command that the user will want next."""
    import shlex

    aside(f"next: {shlex.join(words)}")


def command_line() -> str:
    """What was typed, each file and folder by its last name alone, and without secrets."""
    import re
    import shlex

    from profiler.core.secret_filter import hide

    words = ["gcprof"]
    for before, word in pairwise(["gcprof", *COMMAND.get()]):
        alone = before in ("--data", "--config", "--output", "-o")
        flag = "" if alone else (re.match(r"--(data|config|output)=|-o=?|", word) or [""])[0]
        words.append(flag + Path(word[len(flag) :]).name if alone or flag else word)
    return shlex.join(hide(word) for word in words)


def say_first(plan: tuple[Trial, ...], devices: dict[str, Environment], remarks: tuple[str, ...]) -> None:
    """The first lines of a run: what is measured or predicted, and what the user should know of the plan."""
    from profiler.core import gpu_kinds
    from profiler.core.case import FAKE
    from profiler.request import device_choice

    names = dict.fromkeys(trial.case.device for trial in plan)
    name = next(iter(names))
    predicted = [one for one in names if one.startswith(FAKE)]
    device = device_choice.environment(name, devices)
    where = "; ".join([*_described(device), f"torch {device.torch}"])
    why = "" if name != "cpu" or len(devices) > 1 else "no CUDA device here: "
    kind = "the CPU" if name == "cpu" else "the GPU"
    verb = "rehearsing on" if gpu_kinds.is_hollow(device.device_name) else "measuring"
    doing = f"predicting for {', '.join(predicted)}" if plan[0].case.is_predicted else f"{why}{verb} {kind}"
    aside(f"{doing} ({where if len(predicted) < 2 else f'torch {device.torch}'})")
    for remark in (*_code(plan), *remarks):
        aside(f"note: {remark}")


def _code(plan: tuple[Trial, ...]) -> Iterator[str]:
    """Where the code of the user's own models is that will run."""
    from profiler.core import catalogue
    from profiler.training import models

    for name in dict.fromkeys(trial.case.model.name for trial in plan):
        if catalogue.is_code(name, models.TABLE):
            yield f"{name} is the code in {catalogue.place(name).resolve()}"


def _described(device: Environment) -> list[str]:
    from profiler.core.units import bytes_text

    if device.device_name is None or device.device_bytes is None:
        return []
    return [f"{device.device_name}, {bytes_text(device.device_bytes)}"]
