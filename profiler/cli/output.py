"""What commands print, and how they end."""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer

from profiler.cli.process import end_at_once, heeded
from profiler.core.errors import UserError, nearest, nearest_or_all
from profiler.workflows import Interrupted, Screen

if TYPE_CHECKING:
    from pathlib import Path

    from profiler.core.case import Case
    from profiler.core.record import Record
    from profiler.runs.store import Run
    from profiler.views.tables.terminal import Paper, Printed
    from profiler.workflows import Show

COLOR: ContextVar[str] = ContextVar("COLOR", default="auto")  # what --color asks for
COMMAND: ContextVar[tuple[str, ...]] = ContextVar("COMMAND", default=())  # the words of the command at work


def one_of(word: str, choices: Iterable[str], *, flag: str) -> str:
    """The word, where it is one of those that a flag takes. Raises UserError."""
    names = list(choices)
    if word not in names:
        raise UserError(f"{flag} cannot be '{word}'", hint=nearest_or_all(word, names, before=f"{flag} "))
    return word


NOTHING_KEPT = "interrupted; there was nothing yet to keep"
SIGN_SECONDS = 10.0  # between two lines that say that work goes on, where nobody watches
OF_RANKS = ("--ranks", "--parallel")


def usage(error: Any) -> tuple[str, str | None]:
    """A complaint of click's in our words: the message, and the nearest flag or command or where to read on."""
    message = re.split(r"\s*\(Possible options:|\s*Did you mean|\s*\(Did you mean", error.format_message())[0]
    message = message[:1].lower() + message[1:].rstrip(".")
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


def paper(asked: int | None = None) -> Paper:
    """What results are printed on: as wide as asked, as the terminal, or as they take (a pipe, a file)."""
    import shutil

    from profiler.views.tables.terminal import Paper

    width = asked or (shutil.get_terminal_size().columns if sys.stdout.isatty() else None)
    return Paper(width=width, encoding=sys.stdout.encoding or "utf-8")


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


def say_json(value: Any) -> None:
    """Print a value as one JSON document."""
    from profiler.core.case import encode

    say_bytes(encode(value) + b"\n")


def say_failure(code: int) -> None:
    """With --json, stdout holds one document also where nothing could be run."""
    from profiler.views.export.json import document

    say_bytes(document(None, [], status="failed", exit_code=code))


def aside(text: str) -> None:
    """Tell, beside the result."""
    from profiler.views.sanitize import plain

    print(folded(plain(text), file=sys.stderr), file=sys.stderr)


def folded(text: str, *, file: TextIO) -> str:
    """On a terminal the text in lines that it need not cut, the later ones indented; elsewhere in one line."""
    if not file.isatty():
        return text
    import shutil
    import textwrap

    columns = shutil.get_terminal_size().columns
    return textwrap.fill(text, columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def next_command(*words: str) -> None:
    """The one command that the user will want next, in one piece, to be pasted."""
    import shlex

    from profiler.views.sanitize import plain

    print(plain(f"next: {shlex.join(map(_as_typed, words))}"), file=sys.stderr)


def _as_typed(word: str) -> str:
    """The word; where it is the name of something that is there, in a way that no option is written."""
    return f"./{word}" if word.startswith("-") and word != "-o" and os.path.lexists(word) else word


def shard_text(run: Run) -> str:
    """What a reader of one part of a sweep must know, and what to do next."""
    text = f"part {run.manifest.shard} of a sweep: what is measured in other parts is not here"
    return f"{text}; gcprof merge makes one run of all parts"


class Terminal(Screen):
    """Shows on stderr what a workflow tells: lines, and on a terminal a live table or line while something runs.

    `is_quiet` leaves out the progress.
    """

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._is_quiet = is_quiet
        self._tell: Callable[[str], None] = lambda text: None  # what runs now

    def say(self, text: str) -> None:
        aside(text)

    def at_work(self, text: str) -> None:
        self._tell(text)

    @contextmanager
    def watch(self, cases: Sequence[Case]) -> Iterator[Show]:
        """After the last trial a signal ends the process at once."""
        from profiler.views.tables.progress import Follow

        def show(record: Record, left: int, log: Path) -> None:
            progress.show(record, left=left)
            progress.tell_log(record, log)

        try:
            with Follow(sys.stderr, cases, is_quiet=self._is_quiet) as progress, self._telling(progress.at_work):
                yield show
        finally:
            end_at_once("interrupted; every trial that was printed is kept")

    @contextmanager
    def doing(self, text: str) -> Iterator[None]:
        """A line with the time that it takes, on a terminal; elsewhere one now and then."""
        from profiler.views.tables.progress import Follow

        def tell(step: str) -> None:
            progress.at_work(f"{text}: {step}" if step else text)

        if self._is_quiet:
            yield
            return
        if not sys.stderr.isatty():
            with signs_of_life(text) as now, self._telling(now.append):
                yield
            return
        with Follow(sys.stderr) as progress, self._telling(tell):
            tell("")
            yield

    @contextmanager
    def _telling(self, tell: Callable[[str], None]) -> Iterator[None]:
        before, self._tell = self._tell, tell
        try:
            yield
        finally:
            self._tell = before


@contextmanager
def signs_of_life(text: str) -> Iterator[deque[str]]:
    """Print what is done, the last step that was put into what is yielded, and for how long, every SIGN_SECONDS."""
    from threading import Event, Thread

    ended, steps = Event(), deque[str](maxlen=1)

    def tell() -> None:
        count = 1
        while not ended.wait(SIGN_SECONDS):
            aside(f"{text}: {'; '.join([*steps, f'{count * SIGN_SECONDS:.0f} s so far'])}")
            count += 1

    thread = Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield steps
    finally:
        ended.set()
        thread.join()


def end_with(work: Callable[[], int], *, json: bool = False) -> NoReturn:
    """Do the work, and end the command with its exit code, or with that of a signal that came before there was anything
    to keep.
    """
    try:
        with heeded():
            code = work()
    except Interrupted as interrupted:
        code = interrupted.exit_code
        aside(NOTHING_KEPT)
        if json:
            say_failure(code)
    raise typer.Exit(code)
