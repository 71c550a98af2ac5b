"""The command line: parses flags, calls one workflow or reader, prints; errors are caught once.

Only typer is imported here; every command imports what it needs when it runs, so that --help is quick.
"""

from __future__ import annotations

import errno
import gc
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from inspect import Parameter
from typing import Annotated, Any, get_args, get_type_hints

import typer
import typer.main

from profiler.cli import options, output
from profiler.cli.output import SCRIPT, drop_unwritable
from profiler.core.errors import UserError, load_function, one_of
from profiler.workflows import COMMAND

FULL = (  # errors of a place that cannot be written to
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EBUSY,
)  # fmt: skip
SCARCE = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSYS)  # errors of a lack of resources
GARBAGE = 200_000  # new objects between collections: records live until the end, and scanning 10,000 takes a second
WIDEST = 120  # columns of a help text, at most; less on a narrower terminal
UNABLE, INTERNAL, UNWRITABLE, INTERRUPTED, BROKEN_PIPE = 3, 70, 74, 130, 141
TELLS_FAILURES = ("run", "rehearse", "predict", "plan", "stages", "fit", "reproduce")  # whose JSON is that of a run
ClickError: type[Exception] = typer.BadParameter.__mro__[2]  # ClickException, in whichever package this typer keeps it

LONGEST = 1_000_000  # seconds of a stage: eleven days

COMMANDS = {  # only the one that is asked for is imported
    name: f"profiler.cli.{function}"
    for group in (options.GROUPS | options.MORE | options.RUNS).values()
    for name, (function, _) in group.items()
    if function
}


SCRIPTS = {  # the same words with a command of the user's behind `--`
    "rehearse": "profiler.cli.script:rehearse",
    "run": "profiler.cli.script:run",
    "plan": "profiler.cli.fit:plan_script",
    "fit": "profiler.cli.fit:fit_script",
}


def command(name: str, *, of_script: bool = False) -> Callable[..., Any]:
    """Import and return the function of a command."""
    function: Callable[..., Any] = load_function((SCRIPTS if of_script else COMMANDS)[name])
    return function


def _print_version(asked: bool) -> None:
    if asked:
        from profiler import __version__

        print(f"gcprof {__version__}")
        raise typer.Exit


def gcprof(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Show the version and stop.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Measure what gradient checkpointing saves in memory and costs in time, and prove that the gradients are equal.

    Start with: gcprof rehearse -- python train.py
    """


def application(words: Sequence[str], *, is_whole: bool = False) -> typer.Typer:
    """Return the application with all commands; only the one in `words` has text and options, since reading takes time.

    With `is_whole`, every command has them.
    """
    app = typer.Typer(
        name="gcprof",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        cls=options.Group,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST},
    )
    app.callback()(gcprof)
    runs = typer.Typer(cls=options.Group, help="Keep run folders in order.")
    app.add_typer(runs, name="runs")
    asked = next((word for word in words if word in COMMANDS), None)
    for name in COMMANDS:
        of_script = name in SCRIPTS and bool(SCRIPT.get())
        function = command(name, of_script=of_script) if is_whole or name == asked else None
        text = function and function.__doc__
        is_kept = name in options.RUNS["Runs"]  # its former name, without `runs`, is hidden
        for group in (runs, app) if is_kept else (app,):
            epilog = "\n".join(options.examples(name, text, of_script=of_script))
            group.command(
                name,
                cls=options.Command,
                epilog=epilog,
                hidden=is_kept and group is app,
                help=options.about(name, text, can_take_script=name in SCRIPTS and not of_script),
            )(with_added(function, name, of_script=of_script) if function else lambda: None)
    return app


def with_added(command: Callable[..., Any], name: str, *, of_script: bool = False) -> Callable[..., Any]:
    """Return the command with the options that it does not declare. All its parameters are then keywords.

    Its parameter `words`, a Request annotated with Words, is replaced by a flag for each of these, and receives what
    was given; a run that is named in the model's place gives its model and settings. --stage-limit holds for all that
    TAKES_MODEL commands have done, those of a user's script aside; --color for all that it prints.
    """
    parameters: list[Parameter] = []
    taken: tuple[str, ...] = ()  # the words of the Request
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if words := next((found for found in get_args(parameter.annotation) if isinstance(found, options.Words)), None):
            flags = list(_flags(words))
            parameters += flags
            taken = tuple(flag.name for flag in flags)
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

    def with_options(*, color: str, stage_limit: float | None = None, **given: Any) -> Any:
        output.COLOR.set(one_of(color, options.CHOICES["color"], flag="--color"))
        output.QUIET.set(bool(given.get("quiet")))
        if stage_limit is not None:
            from profiler.engines import STAGE_SECONDS

            if not 0 < stage_limit <= LONGEST:
                raise UserError(
                    f"--stage-limit cannot be {stage_limit:g}", hint=f"seconds, more than 0, up to {LONGEST:,}"
                )
            STAGE_SECONDS.set(stage_limit)
        if given.get("model"):  # a run's name gives its model and settings; what is typed wins
            from profiler.runs import is_run

            if is_run(given["model"]):
                from profiler.workflows.resume import words_of

                known = words_of(given["model"]).items()
                given |= {key: word for key, word in known if key == "model" or (key in taken and given[key] is None)}
        if taken:
            from profiler.workflows.spec import Request

            given["words"] = Request(**{name: given.pop(name) for name in taken})
        return command(**given)

    parameters += [STAGE_LIMIT] if name in options.TAKES_MODEL and not of_script else []
    parameters.append(COLOR_OPTION)
    with_options.__signature__ = inspect.Signature(list(map(options.offered, parameters)))  # type: ignore[attr-defined]
    with_options.__doc__ = command.__doc__
    return with_options


def _option(name: str, kind: Any, default: Any, *words: str, **settings: Any) -> Parameter:
    option = typer.Option(*words, **settings)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


COLOR_OPTION = _option("color", str, "auto", "--color", help="Colours; auto: on a terminal without NO_COLOR.")
STAGE_LIMIT = _option(
    "stage_limit",
    float | None,
    None,
    "--stage-limit",
    help="Seconds that a stage of the work may take: a pass of a trial, a trace, a timed step. [default: 600]",
)


def _flags(words: options.Words) -> Iterator[Parameter]:
    """Yield the model's argument, and a flag for each word, with its help text as the Request has it."""
    from profiler.core.case import SWITCHES
    from profiler.workflows.spec import Request

    if words.model:
        is_needed = type(None) not in get_args(get_args(words.model)[0])
        default = Parameter.empty if is_needed else None
        yield Parameter("model", Parameter.KEYWORD_ONLY, default=default, annotation=words.model)
    kinds = get_type_hints(Request, include_extras=True)
    switches = [switch.key or field for field, switch in SWITCHES.items() if switch.help and words.has_switches]
    for name in (*words.names, *switches):
        kind, text = get_args(kinds[name])
        panel = next((panel for panel, names in options.PANELS.items() if name in names), options.MODEL)
        yield _option(name, kind, None, f"--{name.replace('_', '-')}", help=text, rich_help_panel=panel)


def main(words: Sequence[str] | None = None) -> None:
    """Run one command and end the process with its exit code."""
    gc.set_threshold(GARBAGE)
    # streams that lead nowhere, if the caller closed stdout or stderr
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  open as long as the process
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if options.VARIABLE in os.environ:  # a shell asks for completions; this answers and exits
        typer.main.get_command(application((), is_whole=True)).main(args=[], prog_name="gcprof")
    sys.exit(answer(sys.argv[1:] if words is None else words))


def answer(words: Sequence[str]) -> int:
    """Run one command and return its exit code. Every error becomes one line on stderr, here and nowhere else."""
    COMMAND.set(tuple(words))
    try:
        typed = words
        if words and words[0] in SCRIPTS:  # keep the user's command that the words end with, if any
            words, script = output.split_script(words)
            SCRIPT.set(tuple(script))
        rest, words = typed[len(words) :], options.understood(words)
        COMMAND.set((*words, *rest))
        code = copy_context().run(_invoke, [*words] or ["--help"])  # what its options set is gone after it
        sys.stdout.flush()
        return code
    except UserError as error:
        return _complain(error.message, hint=error.hint, code=error.exit_code, words=words)
    except ClickError as error:
        message, hint = options.usage(error, words, (*COMMANDS, "runs"))
        return _complain(message, hint=hint, code=2, words=words)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted; what was written before is whole", hint=None, code=INTERRUPTED, words=words)
    except BrokenPipeError:  # `gcprof show | head`
        drop_unwritable()
        return BROKEN_PIPE
    except Exception as error:  # noqa: BLE001  # a bug of ours must not look like a result: one line, exit code 70
        return _fail(error, words)
    finally:
        SCRIPT.set(())


def _invoke(words: list[str]) -> int:
    group = typer.main.get_command(application(words))
    try:
        with group.make_context("gcprof", words) as context:
            result: Any = group.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return result if isinstance(result, int) else 0


def _complain(message: str, *, hint: str | None, code: int, words: Sequence[str]) -> int:
    """Print the error and return the exit code, which is all that the caller gets if nothing can be written."""
    from profiler.views.sanitize import plain

    try:
        if "--json" in words:
            output.say_failure(code, message=message, hint=hint, of_run=words[0] in TELLS_FAILURES)
        print(output.folded(f"gcprof: {plain(message)}", file=sys.stderr), file=sys.stderr)
        if hint:
            print(output.folded(f"hint: {plain(hint)}", file=sys.stderr), file=sys.stderr)
    except OSError:
        drop_unwritable()
    return code


def _fail(error: Exception, words: Sequence[str]) -> int:
    if isinstance(error, OSError) and error.errno in FULL:
        drop_unwritable()
        return _complain(
            f"cannot write: {error.strerror}", hint="free some space, or write elsewhere", code=UNWRITABLE, words=words
        )
    if isinstance(error, OSError) and error.errno in SCARCE:
        hint = "end other programs, or raise the limits (ulimit -u, ulimit -n); every result that was printed is kept"
        return _complain(f"this machine cannot do it: {error.strerror}", hint=hint, code=UNABLE, words=words)
    if os.environ.get("GCPROF_TRACEBACK"):
        import traceback

        traceback.print_exception(error)
    path = output.keep_error(error)
    hint = f"report it with {path}, where the traceback is" if path else "GCPROF_TRACEBACK=1 shows the traceback"
    message = f"internal error: {type(error).__name__}: {error}; every result that was printed is kept"
    return _complain(message, hint=hint, code=INTERNAL, words=words)
