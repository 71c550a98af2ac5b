"""What commands print, and how they end."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from profiler.cli.signals import end_at_once, heeded
from profiler.core.errors import UserError, nearest
from profiler.workflows import Interrupted, Screen

if TYPE_CHECKING:
    from pathlib import Path

    from profiler.core.case import Case
    from profiler.core.record import Record
    from profiler.runs.store import Run
    from profiler.views.tables.terminal import Printed
    from profiler.workflows import Show

COLOR: ContextVar[str] = ContextVar("COLOR", default="auto")  # what --color asks for
COMMAND: ContextVar[tuple[str, ...]] = ContextVar("COMMAND", default=())  # the words of the command at work


def one_of(word: str, choices: Iterable[str], *, flag: str) -> str:
    """The word, where it is one of those that a flag takes. Raises UserError."""
    names = list(choices)
    if word not in names:
        hint = nearest(word, names, before=f"{flag} ") or f"choose from {', '.join(names)}"
        raise UserError(f"{flag} cannot be '{word}'", hint=hint)
    return word


OF_RANKS = ("--ranks", "--parallel")


def usage(error: Any) -> tuple[str, str | None]:
    """A complaint of click's in our words: the message, and the nearest flag or command or where to read on."""
    message = re.split(r"\s*\(Possible options:|\s*Did you mean|\s*\(Did you mean", error.format_message())[0]
    message = message[:1].lower() + message[1:]
    context = error.ctx
    if context is None:
        return message, None
    command = re.match(r"no such command '(.*)'", message)
    flag = getattr(error, "option_name", "")
    if flag in OF_RANKS:
        return message, f"this command follows one process; gcprof predict and gcprof rehearse take {flag}"
    if command:
        near = nearest(command[1], context.command.commands)
    else:
        names = {name for parameter in context.command.params for name in parameter.opts if name.startswith("-")}
        near = nearest(flag, names - {flag})
    return message, near or f"{context.command_path} --help"


def width(asked: int | None = None) -> int | None:
    """The width to print at: as asked, the terminal's, or None (as wide as it takes) into a pipe or a file."""
    import shutil

    return asked or (shutil.get_terminal_size().columns if sys.stdout.isatty() else None)


def say(text: Printed) -> None:
    """Print a result."""
    from profiler.views.tables.terminal import write

    write(text, file=sys.stdout, color=COLOR.get())


def say_bytes(text: bytes) -> None:
    """Print a document as it is; on a terminal with what it would obey escaped."""
    from profiler.views.sanitize import escaped

    sys.stdout.flush()
    sys.stdout.buffer.write(escaped(text.decode(errors="replace")).encode() if sys.stdout.isatty() else text)
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


def shard_text(run: Run) -> str:
    """What a reader of one part of a sweep must know, and what to do next."""
    text = f"part {run.manifest.shard} of a sweep: what is measured in other parts is not here"
    return f"{text}; gcprof merge makes one run of all parts"


class Terminal(Screen):
    """Shows on stderr what a workflow tells: lines, and a bar while trials run."""

    def say(self, text: str) -> None:
        aside(text)

    @contextmanager
    def watch(self, cases: Sequence[Case]) -> Iterator[Show]:
        """After the last trial a signal ends the process at once."""
        from profiler.views.tables.progress import Follow

        def show(record: Record, left: int, log: Path) -> None:
            progress.show(record, left=left)
            progress.tell_log(record, log)

        try:
            with Follow(sys.stderr, cases) as progress:
                yield show
        finally:
            end_at_once()


def end_with(work: Callable[[], int], *, json: bool = False) -> NoReturn:
    """Do the work, and end the command with its exit code, or with that of a signal that came before there was anything
    to keep.
    """
    try:
        with heeded():
            code = work()
    except Interrupted as interrupted:
        code = interrupted.exit_code
        if json:
            say_failure(code)
    raise typer.Exit(code)
