"""Options that commands have without declaring them: those of a Request, --model, --stage-limit, --color."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from inspect import Parameter
from typing import Annotated, Any, get_args, get_type_hints

import typer

from profiler.cli import options
from profiler.cli.help import MODEL, PANELS
from profiler.cli.options import Words
from profiler.cli.output import COLOR, one_of
from profiler.core.errors import UserError

CHOICES = ("auto", "always", "never")
LIMITED = (  # commands that start processes whose stages are limited
    "run", "rehearse", "predict", "explain", "timeline", "plan", "stages", "max-batch", "blocks",
)  # fmt: skip
LONGEST = 1_000_000  # seconds of a stage: eleven days
NAMES = ("model", "target")  # of the parameter that is the first argument


def with_added(command: Callable[..., Any], name: str, *, of_script: bool = False) -> Callable[..., Any]:
    """Return the command with the options that it does not declare. All its parameters are then keywords.

    A parameter that is a Request, annotated with Words, is replaced by a flag for each of these, and receives what was
    given. --model can replace the first argument, if that is a model: both at once are refused, and so is neither if
    the command needs a model. --stage-limit holds for all that LIMITED commands have done, those of a user's script
    aside; --color for all that it prints.
    """
    parameters: list[Parameter] = []
    taken: dict[str, tuple[str, ...]] = {}  # by the parameter that is a Request, the words that it takes
    for key, parameter in inspect.signature(command, eval_str=True).parameters.items():
        if words := next((found for found in get_args(parameter.annotation) if isinstance(found, Words)), None):
            taken[key] = (*(["model"] if words.model else []), *_taken(words))
            parameters += _flags(words)
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
    first = next((parameter for parameter in parameters if parameter.name in NAMES), None)
    needed_by = name if first and first.default is Parameter.empty else None

    def with_options(
        *, color: str, model_flag: str | None = None, stage_limit: float | None = None, **given: Any
    ) -> Any:
        COLOR.set(one_of(color, CHOICES, flag="--color"))
        if stage_limit is not None:
            _set_limit(stage_limit)
        if first:
            given[first.name] = _model(given[first.name], model_flag, needed_by)
        for key, names in taken.items():
            from profiler.request.spec import Request

            given[key] = Request(**{name: given.pop(name) for name in names})
        return command(**given)

    parameters = [one.replace(default=None) if one is first else one for one in parameters]
    parameters += [STAGE_LIMIT] if name in LIMITED and not of_script else []
    parameters += [MODEL_FLAG, COLOR_OPTION] if first else [COLOR_OPTION]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__doc__ = command.__doc__
    return with_options


def _option(name: str, kind: Any, default: Any, *words: str, **settings: Any) -> Parameter:
    option = typer.Option(*words, **settings)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


COLOR_OPTION = _option(
    "color", str, "auto", "--color", metavar="<str>", help="auto (a terminal without NO_COLOR), always, never."
)
STAGE_LIMIT = _option(
    "stage_limit",
    float | None,
    None,
    "--stage-limit",
    help="Seconds that a stage of the work may take: a pass of a trial, a trace, a timed step. [default: 600]",
)
MODEL_FLAG = _option(
    "model_flag",
    str | None,
    None,
    "--model",
    help="The same as the argument `model`.",
    autocompletion=options.propose_models,
)


def _taken(words: Words) -> tuple[str, ...]:
    """Return the words that become flags."""
    from profiler.core.case import SWITCHES

    switches = [switch.key or field for field, switch in SWITCHES.items() if switch.help and words.has_switches]
    return *words.names, *switches


def _flags(words: Words) -> Iterator[Parameter]:
    """Yield the model's argument, and a flag for each word, with its help text as the Request has it."""
    from profiler.request.spec import Request

    if words.model:
        is_needed = type(None) not in get_args(get_args(words.model)[0])
        default = Parameter.empty if is_needed else None
        yield Parameter("model", Parameter.KEYWORD_ONLY, default=default, annotation=words.model)
    kinds = get_type_hints(Request, include_extras=True)
    for name in _taken(words):
        kind, about = get_args(kinds[name])
        panel = next((panel for panel, names in PANELS.items() if name in names), MODEL)
        flag = f"--{name.replace('_', '-')}"
        yield _option(
            name, kind, None, flag, help=about, rich_help_panel=panel, autocompletion=options.PROPOSALS.get(name)
        )


def _set_limit(seconds: float) -> None:
    """Set how long a stage of this command's work may take. Raises UserError for an impossible number."""
    from profiler.engines import STAGE_SECONDS

    if not 0 < seconds <= LONGEST:
        raise UserError(f"--stage-limit cannot be {seconds:g}", hint=f"seconds, more than 0, up to {LONGEST:,}")
    STAGE_SECONDS.set(seconds)


def _model(typed: str | None, flag: str | None, needed_by: str | None) -> str | None:
    """Return the model, the first argument or --model. Raises UserError for both, or for neither if it is needed."""
    if typed is not None and flag is not None:
        message = f"the model is given twice: '{typed}' and --model '{flag}'"
        raise UserError(message, hint="leave one of them out")
    if needed_by and typed is None and flag is None:
        raise UserError(f"{needed_by} needs a model", hint=f"gcprof {needed_by} mlp; `gcprof models` lists them")
    return flag if typed is None else typed
