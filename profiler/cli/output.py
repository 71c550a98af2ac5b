"""What commands print, and how they end: streams, signals, the file of an internal error."""

from __future__ import annotations

import ast
import itertools
import os
import re
import shlex
import shutil
import signal
import sys
import textwrap
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from profiler.core.errors import UserError
from profiler.workflows import COMMAND, Interrupted, Screen

if TYPE_CHECKING:
    from profiler.core.case import Case
    from profiler.core.plan_file import PlanFile
    from profiler.runs.store import Run
    from profiler.views.tables import Table
    from profiler.workflows import Show

COLOR: ContextVar[str] = ContextVar("COLOR", default="auto")  # what --color asks for
QUIET: ContextVar[bool] = ContextVar("QUIET", default=False)  # whether --quiet was given: results alone
SCRIPT: ContextVar[tuple[str, ...]] = ContextVar("SCRIPT", default=())  # a command of the user's, behind `--`
LAUNCHERS = (  # programs that begin a command of the user's, and are no models
    "torchrun", "accelerate", "deepspeed", "composer", "sh", "bash", "uv", "poetry", "conda", "env", "mpirun", "srun",
)  # fmt: skip
RUNNABLE = (".py", ".ipynb")  # files that are run as they are
FOLDER: str | None = None  # for the file of an internal error; None: where temporary files are


def split_script(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return gcprof's own words and those of a user's command: what follows `--`, or begins with a script's file."""
    for place, word in enumerate(words):
        if word == "--":
            script = words[place + 1 :]
            if not script:
                raise UserError("there is no command behind --", hint=f"gcprof {words[0]} -- python train.py")
            if len(script) == 1 and " " in script[0] and not Path(script[0]).is_file():
                message = f"'{script[0]}' is taken for one word, as it is in quotes"
                raise UserError(message, hint=f"gcprof {shlex.join(words[:place])} -- {script[0]}")
            return [*words[:place]], [*_program(script[0]), *script]
        before, following = words[place - 1], [*words[place + 1 : place + 2]]
        if not place or word.startswith("-") or before == "--emit":
            continue
        is_python = re.fullmatch(r"python[\d.]*", word) is not None
        if word in LAUNCHERS or word.endswith(".sh") or (is_python and following and not following[0].endswith(".py")):
            shell = ["sh"] if word.endswith(".sh") else []
            right = shlex.join([*words[:place], "--", *shell, *words[place:]])
            raise UserError(f"there is no -- before the command '{word}'", hint=f"gcprof {right}")
        if word.endswith(RUNNABLE) and (words[0] not in ("run", "plan") or _does_something(word)):
            if before.startswith("python") and words[place - 2] != "--emit":  # the -- was left out
                return [*words[: place - 1]], [*words[place - 1 :]]
            return [*words[:place]], [*_program(word), *words[place:]]
    return [*words], []


def _program(first: str) -> list[str]:
    """Return what is to stand before the first word of a command that a shell, or nobody, could start as it is."""
    if re.match(r"[A-Za-z_]\w*=", first):
        return ["env"]
    return ["python"] if first.endswith(".py") else ["jupyter", "execute"] if first.endswith(".ipynb") else []


DEFINING = (
    ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
)


def _does_something(file: str) -> bool:
    """Whether a Python file does more than to define functions and names; False where it cannot be read."""
    try:
        done = [one for one in ast.parse(Path(file).read_bytes()).body if not isinstance(one, DEFINING)]
    except (OSError, SyntaxError, ValueError):
        return False
    return any(not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)) for one in done)


def read_run(word: str, *, without: Collection[str] = ()) -> Run:
    """Return the run that a word names; what is wrong with its files is said on stderr. Raises UserError."""
    from profiler.runs import run_folder
    from profiler.runs.store import load

    run = load(run_folder(word), without=without)
    for warning in run.warnings:
        aside(f"warning: {word}: {warning}")
    return run


ASIDE = ("note: ", "wrote ")  # how lines begin that --quiet leaves out
ANYWHERE = ("--color", "--quiet", "-q")  # flags that never lack an effect


def refuse_flags(allowed: Collection[str], why: str, *, hint: str) -> None:
    """Raise UserError for an option of the typed command that is none of these, and so has no effect."""
    for flag in [word.partition("=")[0] for word in COMMAND.get() if word.startswith("-")]:
        if flag not in (*allowed, *ANYWHERE):
            raise UserError(f"{flag} has no effect {why}", hint=hint)


NOTHING_KEPT = "interrupted; there was nothing yet to keep"
SIGN_SECONDS = 10.0  # between two lines of progress, if stderr is not a terminal


def screen_width() -> int | None:
    """Return the columns of the terminal; None for a pipe or a file, which take any width."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def say(*tables: Table, columns: int | None = None) -> None:
    """Print a result, as wide as was asked for, or as the terminal is."""
    from profiler.views.tables import show

    if tables:
        show(tables, file=sys.stdout, width=columns or screen_width(), color=COLOR.get())


def say_bytes(text: bytes) -> None:
    """Print a document as it is; on a terminal with control characters escaped."""
    from profiler.views.sanitize import escaped

    sys.stdout.flush()
    sys.stdout.buffer.write(escaped(text.decode(errors="replace")).encode() if sys.stdout.isatty() else text)
    sys.stdout.buffer.flush()


def say_json(value: Any) -> None:
    """Print a value as one JSON document."""
    from profiler.core.case import encode

    say_bytes(encode(value) + b"\n")


def say_failure(code: int, *, message: str, hint: str | None = None, of_run: bool = True) -> None:
    """Print the JSON document of a failure: with --json, stdout holds one document even if nothing could run."""
    failed: dict[str, Any] = {"status": "failed", "exit_code": code}
    if SCRIPT.get() or of_run:
        from profiler.core.record import SCHEMA

        rows = "variants" if SCRIPT.get() else "records"
        failed = {"schema": 1 if SCRIPT.get() else SCHEMA, "run": None, **failed, rows: []}
    say_json({**failed, "message": message, "hint": hint})


def aside(text: str) -> None:
    """Print a line on stderr, beside the result; with --quiet no note and no name of what was written."""
    from profiler.views.sanitize import plain

    if QUIET.get() and text.startswith(ASIDE):
        return
    shown = folded(plain(text), file=sys.stderr)
    if "GCP" in shown and sys.stderr.isatty():
        from profiler.views.tables import colored, linked

        shown = linked(shown) if colored(sys.stderr, COLOR.get()) else shown
    print(shown, file=sys.stderr)


def folded(text: str, *, file: TextIO) -> str:
    """Return the text wrapped with a hanging indent if the file is a terminal, else as it is."""
    if not file.isatty():
        return text
    columns = shutil.get_terminal_size().columns
    return textwrap.fill(text, columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def beside_code(emit: str | None) -> AbstractContextManager[object]:
    """Have what is printed within go to stderr where code is asked for, which stdout is then for."""
    return redirect_stdout(sys.stderr if emit else sys.stdout)


def write_plan(plan: PlanFile | None, path: Path, *, force: bool) -> None:
    """Write a plan as JSON and say where, or say that there is none. Raises UserError."""
    from profiler.core.case import encode_indented
    from profiler.views.export import write_whole

    if plan:
        write_whole(path, encode_indented(plan), force=force)
    aside(f"wrote {path}" if plan else f"{path} is not written: what fits has no plan")


def next_command(*words: str) -> None:
    """Print on stderr the one command that the user will want next, on one line, to be pasted; not with --quiet."""
    from profiler.views.sanitize import plain

    if not QUIET.get():
        print(plain(f"next: {shlex.join(words)}"), file=sys.stderr)


def shard_text(run: Run) -> str:
    """Return a note on a run that is not all shards of a sweep, with what to do next."""
    text = f"shard {run.manifest.shard} of a sweep: results of other shards are not here"
    return f"{text}; gcprof runs merge merges all shards"


class Terminal(Screen):
    """Shows the progress of a workflow on stderr: lines, and on a terminal a live table or line while something runs.

    `is_quiet` leaves out all but lines and failures; the log of a failure is named where it stays.
    """

    def __init__(self, *, is_quiet: bool = False, names_logs: bool = True) -> None:
        self._is_quiet, self._names_logs = is_quiet, names_logs
        self._tell: Callable[[str], None] = lambda text: None  # takes what runs now

    def say(self, text: str) -> None:
        aside(text)

    def at_work(self, text: str) -> None:
        self._tell(text)

    @contextmanager
    def watch(self, cases: Sequence[Case]) -> Iterator[Show]:
        """Context manager that shows each record; after the last trial a signal ends the process at once."""
        from profiler.views.tables.progress import Follow

        progress = Follow(sys.stderr, cases, is_quiet=self._is_quiet, names_logs=self._names_logs)
        try:
            with progress, self._telling(progress.at_work):
                yield progress.show
        finally:
            end_at_once("interrupted; every trial that was printed is kept")

    @contextmanager
    def doing(self, text: str) -> Iterator[None]:
        """Context manager that shows a line with the elapsed time on a terminal; elsewhere one every SIGN_SECONDS."""
        from threading import Event, Thread

        from profiler.views.tables.progress import Follow

        if self._is_quiet:
            yield
        elif sys.stderr.isatty():
            with Follow(sys.stderr) as progress:
                progress.at_work(text)
                with self._telling(lambda step: progress.at_work(f"{text}: {step}" if step else text)):
                    yield
        else:
            ended, steps = Event(), deque[str](maxlen=1)

            def say_signs() -> None:
                for count in itertools.count(1):
                    if ended.wait(SIGN_SECONDS):
                        return
                    aside(f"{text}: {'; '.join([*steps, f'{count * SIGN_SECONDS:.0f} s so far'])}")

            thread = Thread(target=say_signs, daemon=True)
            thread.start()
            try:
                with self._telling(steps.append):
                    yield
            finally:
                ended.set()
                thread.join()

    @contextmanager
    def _telling(self, tell: Callable[[str], None]) -> Iterator[None]:
        before, self._tell = self._tell, tell
        try:
            yield
        finally:
            self._tell = before


@contextmanager
def interruptible(*, json: bool = False) -> Iterator[None]:
    """Context of a command's work: a signal ends it with its exit code if there was nothing yet to keep.

    The signals are Ctrl-C, SIGTERM and SIGHUP; a second one ends the process.
    """

    def handle(number: int, frame: object) -> None:
        end_at_once()
        raise Interrupted(number)

    before = {number: signal.signal(number, handle) for number in _not_ignored()}
    try:
        yield
    except Interrupted as interrupted:
        aside(NOTHING_KEPT)
        if json:
            say_failure(interrupted.exit_code, message=NOTHING_KEPT)
        raise typer.Exit(interrupted.exit_code) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def drop_unwritable() -> None:
    """Redirect streams that cannot be flushed to /dev/null, so that flushing them at exit does not raise again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def end_at_once(words: str = "") -> None:
    """Make a signal end this process from now on, with a line of these words; the engine's processes end with it."""

    def end(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        with suppress(OSError):
            os.write(2, f"\n{words}\n".encode())
        signal.raise_signal(number)

    for number in _not_ignored():
        signal.signal(number, end if words else signal.SIG_DFL)


def _not_ignored() -> list[int]:
    """Return the termination signals that are not ignored: `nohup` ignores SIGHUP on purpose."""
    asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in asked if signal.getsignal(number) != signal.SIG_IGN]


def keep_error(error: BaseException) -> str | None:
    """Write the traceback to a new file that only this user can read; return its path, or None if that fails."""
    import tempfile
    import traceback

    from profiler.core.safe_files import hide

    try:
        descriptor, path = tempfile.mkstemp(prefix="gcprof-error-", suffix=".log", dir=FOLDER)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(hide("".join(traceback.format_exception(error))))
    except OSError:
        return None
    return path
