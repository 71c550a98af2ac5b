"""What commands share: arguments and options, with their completions; the layout of help; other tools' options."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo, ParameterInfo

from profiler.cli.output import SCRIPT, split_script
from profiler.core.errors import UserError, load_module, nearest
from profiler.workflows import COMMAND

VARIABLE = "_GCPROF_COMPLETE"  # set by the shell's script when it asks for completions


def _proposing(offers: Callable[[], Iterable[tuple[str, str]]]) -> Callable[[str], list[tuple[str, str]]]:
    """Return a function that completes a word, in a list the last one, to what is offered: names and what they are."""

    def propose(incomplete: str) -> list[tuple[str, str]]:
        before, comma, word = incomplete.rpartition(",")
        return [(f"{before}{comma}{name}", about) for name, about in offers() if name.startswith(word)]

    return propose


def _named(*names: str) -> list[tuple[str, str]]:
    return [(name, "") for name in names]


def _runs() -> list[tuple[str, str]]:
    """Return `last`, and the names below results/, the newest first; a path is left to the shell."""
    from profiler.runs import RESULTS, runs

    return _named("last", *(path.name for path in reversed(runs(RESULTS))))


def _entries(field: str) -> Iterator[tuple[str, str]]:
    """Yield what may be in this field of a case; of a family, the user types the member."""
    from profiler.core import catalogue
    from profiler.training import LEVERS
    from profiler.workflows.spec import TABLES

    for entry in catalogue.entries({**TABLES[field], **(LEVERS if field == "strategy" else {})}):
        if "/" not in entry.name:
            yield entry.name.removesuffix("NAME"), entry.about


propose_models, propose_strategies = (_proposing(partial(_entries, field)) for field in ("model", "strategy"))

CHOICES: dict[str, tuple[str, ...]] = {  # by the name of an option, in any command
    "optimizer": ("sgd", "momentum", "adam", "adamw"),
    "precision": ("fp32", "bf16", "fp16", "amp-bf16", "amp-fp16"),
    "parallel": ("ddp", "fsdp2"),
    "routing": ("balanced", "worst"),
    "verify": ("auto", "off", "strict"),
    "exclusive": ("warn", "error"),
    "color": ("auto", "always", "never"),
    "style": ("default", "slides", "paper"),
}
PROPOSALS = {  # the same
    **{name: _proposing(partial(_named, *words)) for name, words in CHOICES.items()},
    "optimizer": _proposing(partial(_entries, "optimizer")),
    "device": _proposing(lambda: _named("auto", "cpu", "cuda", *load_module("profiler.core.gpu_specs").names())),
    "strategies": propose_strategies,
    "model": propose_models,
    "run": _proposing(_runs),
    "runs": _proposing(_runs),
    "target": _proposing(lambda: [*_runs(), *_entries("model")]),
    "kind": _proposing(lambda: _named(*load_module("profiler.views").PLOTS)),
    "to": _proposing(
        lambda: _named(*load_module("profiler.views").EXPORTS, *load_module("profiler.views.trackers").TRACKERS)
    ),
}


def offered(parameter: Parameter) -> Parameter:
    """Return the parameter of a command; an option with choices shows them, and both complete to what they may be."""
    for info in get_args(parameter.annotation)[1:]:
        if isinstance(info, ParameterInfo):
            if (choices := CHOICES.get(parameter.name)) and isinstance(info, OptionInfo):
                info.metavar = f"[{'|'.join(choices)}]"
            info.autocompletion = info.autocompletion or PROPOSALS.get(parameter.name)
    return parameter


MODEL_HELP = "A model, as NAME:option=value,...; `gcprof models` lists them."
MODELS_HELP = "Models, as NAME:option=value,...; `gcprof models` lists them."
RUN_HELP = "A run folder, any part of its name below results/, `last`, or `ref:NAME` of `gcprof runs list --ref`."

# which model, which run

Model = Annotated[str, typer.Argument(help=MODEL_HELP)]
ModelOrNone = Annotated[str | None, typer.Argument(help=MODEL_HELP)]
Models = Annotated[str | None, typer.Argument(help=MODELS_HELP)]
_target = typer.Argument(help="A model as for `gcprof run`, or a run folder.")
Target = Annotated[str, _target]
OptionalTarget = Annotated[str | None, _target]
RunName = Annotated[str, typer.Argument(help=RUN_HELP)]


class Words(NamedTuple):
    """Which words of a Request a command takes as flags; `with_added` makes these, and fills the Request in."""

    names: tuple[str, ...]
    model: Any = None  # its first argument, if that is the request's model
    has_switches: bool = True  # whether it also takes every switch of a case


STEP = ("optimizer", "batch_size", "precision", "accumulate", "blocks")
SWEEP = ("segments", "strategies", *STEP, "parallel", "ranks")
RUN = (
    *SWEEP, "device", "gpus", "predict", "data", "verify", "rounds", "samples", "precision_target",
    "max_samples", "max_seconds", "warmup", "seed",
)  # fmt: skip

# where

TracedDevice = Annotated[str | None, typer.Option(help="A GPU: t4, h100, ...; cuda, an H100; or cpu. [default: cuda]")]
PlannedDevice = Annotated[
    str | None, typer.Option(help="auto, cpu, cuda; or a GPU that need not be here: t4, h100, ... [default: auto]")
]
RunFolder = Annotated[Path | None, typer.Option("-o", "--output", help="The run folder; it must not exist yet.")]

# what is printed and written

AlsoHidden = Annotated[bool, typer.Option("--all", help="Also the hidden ones, made for tests.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
JsonOrTable = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results alone.")]
Width = Annotated[int | None, typer.Option("--width", min=20, help="Columns to print. [default: the terminal's width]")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file.")]
ForceIfThere = Annotated[bool, typer.Option("--force", help="Overwrite the file if it is there.")]


Commands = dict[str, dict[str, tuple[str, str]]]  # by group and name: its function in this folder, and what it does
GROUPS: Commands = {  # in words that are short enough for any terminal
    "Measure": {
        "run": ("run:run", "Measure memory and time by strategy"),
        "doctor": ("look_up:doctor", "Check versions, devices and a trial"),
    },
    "Without a GPU": {
        "rehearse": ("run:rehearse", "Run PyTorch's CUDA code without GPU"),
        "explain": ("explain:explain", "Explain what holds the peak"),
        "fit": ("fit:fit", "Find the fastest way to fit a memory"),
        "plan": ("plan:plan", "Find the fastest plan within memory"),
    },
    "Read": {
        "show": ("show:show", "Show a run as a table"),
        "compare": ("show:compare", "Compare runs: settings, peaks and times"),
        "report": ("show:report", "Write runs as an HTML page"),
        "runs": ("", "List, tag, merge, check, remove runs"),
    },
}
MORE: Commands = {  # the same for commands that only --help-all lists
    "More": {
        "predict": ("run:predict", "Predict memory without the device"),
        "timeline": ("explain:timeline", "Draw live memory over a step"),
        "stages": ("plan:stages", "Measure the costs of each stage"),
        "plot": ("show:plot", "Plot a run as a picture"),
        "export": ("show:export", "Export a run for other tools"),
        "blocks": ("look_up:blocks", "Show the blocks of a model"),
        "models": ("look_up:models", "List models and optimizers with options"),
        "strategies": ("look_up:strategies", "List strategies with their options"),
        "note": ("look_up:note", "Explain a note below a table"),
        "reproduce": ("run:reproduce", "Run a published system, compare figures"),
    },
}
RUNS: Commands = {  # the same for `gcprof runs`
    "Runs": {
        "list": ("run_folders:list_runs", "List the runs, newest last"),
        "tag": ("run_folders:tag", "Tag a run to find it"),
        "rm": ("run_folders:rm", "Remove runs, asking for each first"),
        "merge": ("run_folders:merge", "Merge several runs into one"),
        "validate": ("run_folders:validate", "Check every line of a run"),
    },
}

MODEL = "Model"
PANELS: dict[str, tuple[str, ...]] = {  # panel -> the names of its options, in any command
    MODEL: (
        "optimizer", "batch_size", "precision", "accumulate", "blocks", "pattern", "parallel", "ranks",
        "repair_batchnorm", "routing", "data", "seed", "stages",
    ),
    "Strategies": ("segments", "strategies", "strategy", "budget", "levels", "frontier"),
    "Device": (
        "device", "gpus", "memory", "context", "cudnn_workspace", "calibrate", "rehearse", "fit", "predict", "snapshot",
    ),
    "Sampling": (
        "rounds", "samples", "precision_target", "max_samples", "max_seconds", "warmup", "verify", "measure",
    ),
    "Output": (
        "output", "force", "json", "quiet", "columns", "dry_run", "emit", "source", "format", "paste", "kind",
        "over", "style", "color",
    ),
    "Where it runs": (
        "config", "resume", "new_run", "engine", "devices", "allow_parallel", "shard", "stage_limit", "exclusive",
    ),
}  # fmt: skip

MORE_EXAMPLES: dict[str, tuple[str, str]] = {  # besides the one of the command's docstring
    "run": ("gcprof run train.py:make --strategies sqrt,all", "gcprof run --resume last"),
    "rehearse": ("gcprof rehearse mlp --device t4 --memory 60%", "gcprof rehearse train.py:make --device rtx-4090"),
    "predict": ("gcprof predict train.py:make", "gcprof predict mnist-cnn --device t4,a100-80"),
    "explain": ("gcprof explain last", "gcprof explain train.py:make --device rehearse:h100"),
    "timeline": ("gcprof timeline mlp --segments 2,4", "gcprof timeline last -o timeline.svg"),
    "plan": ("gcprof plan train.py:make --budget 11GiB --device t4", "gcprof plan --from plan.json --emit python"),
    "stages": ("gcprof stages mlp --device t4", "gcprof stages train.py:make --json"),
    "fit": ("gcprof fit hf:gpt2 --batch-size max --device rtx-4090", "gcprof fit train.py:make"),
    "show": ("gcprof show", "gcprof show last --samples"),
    "compare": ("gcprof compare before after --fail-on 'peak:>2%'", "gcprof compare 3fa9c1 77ab02 --format md"),
    "plot": ("gcprof plot last --kind time", "gcprof plot last --kind frontier -o frontier.svg"),
    "export": ("gcprof export last --to csv", "gcprof export last --to md -o table.md"),
    "report": ("gcprof report last -o report.html --force", "gcprof report 3fa9c1 77ab02 -o both.html"),
    "list": ("gcprof runs list --ref", "gcprof runs list --json"),
    "tag": ("gcprof runs tag 3fa9c1 v1 paper", "gcprof runs tag last baseline --remove"),
    "rm": ("gcprof runs rm 3fa9c1", "gcprof runs rm --yes 3fa9c1 77ab02"),
    "merge": ("gcprof runs merge one two", "gcprof runs merge one two three -o results/whole"),
    "validate": ("gcprof runs validate", "gcprof runs validate last --json"),
    "models": ("gcprof models", "gcprof models adamw"),
    "strategies": ("gcprof strategies", "gcprof strategies selective"),
    "blocks": ("gcprof blocks train.py:make", "gcprof blocks mlp --json"),
    "reproduce": ("gcprof reproduce mnist-cnn", "gcprof reproduce resnet152 --predict"),
    "doctor": ("gcprof doctor --paste", "gcprof doctor --json"),
    "note": ("gcprof note gcp039", "gcprof note 12"),
}
SCRIPT_EXAMPLES: dict[str, tuple[str, str]] = {  # the same, of those that take a command of the user's behind `--`
    "rehearse": (
        "gcprof rehearse --device h100:8 -- torchrun --nproc-per-node 8 train.py",
        "gcprof rehearse --device t4,a100-40 -L 'batch 16,32' -- python train.py --batch-size {batch}",
    ),
    "plan": (
        "gcprof plan --budget 60% --batches 4 -- python train.py",
        "gcprof plan --budget 11GiB --emit python -- python train.py",
    ),
    "fit": (
        "gcprof fit --memory 60% --device t4 --batches 4 -- python train.py",
        "gcprof fit --memory 11GiB -o plan.json -- python train.py --batch-size 64",
    ),
}
MOST = 20  # options of a command's help, --help and --help-all among them; of more the RARE ones are left out
RARE = (
    "parallel", "routing", "data", "seed", "keep_grads", "repair_batchnorm", "gpus", "predict",
    "precision_target", "max_samples", "max_seconds", "warmup", "new_run", "engine", "devices", "allow_parallel",
    "shard", "exclusive", "stage_limit", "color", "cudnn_workspace", "calibrate", "levels", "stages", "force",
    "allow_writes",
)  # fmt: skip
ALL = "--help-all"
OTHER = "Options"
EXAMPLE = "Example: "
OF_SCRIPT = (
    "After `--`, or from a word FILE.py on, follows your own training command, which is run unchanged; "
    "`gcprof {} --help -- x` explains the options that it takes."
)


def about(name: str, doc: str | None, *, can_take_script: bool = False) -> str:
    """Return a command's docstring without its example, which goes below the options."""
    paragraphs = [*inspect.cleandoc(doc or "").split("\n\n"), *([OF_SCRIPT.format(name)] if can_take_script else [])]
    return "\n\n".join(paragraph for paragraph in paragraphs if not paragraph.startswith(EXAMPLE))


def examples(name: str, doc: str | None, *, of_script: bool = False) -> tuple[str, ...]:
    """Return three example commands to paste, the docstring's own first; `of_script` those with a user's command."""
    paragraphs = inspect.cleandoc(doc or "").split("\n\n")
    own = [" ".join(text.removeprefix(EXAMPLE).split()) for text in paragraphs if text.startswith(EXAMPLE)]
    return (*own, *(SCRIPT_EXAMPLES.get(name, ()) if of_script else MORE_EXAMPLES[name]))


def _as_help(ctx: Any, args: list[str]) -> list[str]:
    """Return the words with `--help` for ALL, which the context then knows."""
    ctx.meta[ALL] = ctx.meta.get(ALL) or ALL in args
    return ["--help" if word == ALL else word for word in args]


class Command(TyperCommand):
    """A command whose help has its options in panels, and its examples unwrapped, ready to paste."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        parsed: list[str] = super().parse_args(ctx, _as_help(ctx, args))
        return parsed

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options in the panels that they name or PANELS says, those of none under OTHER."""
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], **{panel: [] for panel in PANELS}, OTHER: []}
        panel_of = {name: panel for panel, names in PANELS.items() for name in names}
        parameters: list[Any] = self.get_params(ctx)
        is_long = sum(one.param_type_name == "option" for one in parameters) > MOST
        is_short = is_long and not ctx.meta[ALL]
        for parameter in parameters:
            if is_short and parameter.name in RARE:
                continue
            if (line := parameter.get_help_record(ctx)) is not None:
                word, about = line
                is_option = parameter.param_type_name == "option"
                word = word.replace(" range>", ">") if is_option else word.partition(" <")[0]
                panel = "Arguments"
                if is_option:
                    panel = parameter.rich_help_panel or panel_of.get(parameter.name, OTHER)
                panels[panel].append((word, about.replace("  [", " [")))
        if is_long:
            panels[OTHER].append((ALL, "Show all options and exit."))
        for panel, lines in panels.items():
            if lines:
                with formatter.section(panel):
                    formatter.write_dl(lines)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.splitlines():
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class Group(TyperGroup):
    """A group of commands, whose help lists them by GROUPS or RUNS, and those of MORE with ALL."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        parsed: list[str] = super().parse_args(ctx, [*_as_help(ctx, args[:1]), *args[1:]])
        return parsed

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        is_main = ctx.info_name != "runs"
        shown = RUNS if not is_main else GROUPS | MORE if ctx.meta[ALL] else GROUPS
        for group, commands in shown.items():
            with formatter.section(group):
                formatter.write_dl([(name, about) for name, (_, about) in commands.items()])
        if shown is GROUPS:
            formatter.write(f"\n`gcprof {ALL}` lists {sum(map(len, MORE.values()))} more commands.\n")


OPTIONS = {
    "--dtype": "--precision",
    "--mixed-precision": "--precision",
    "--grad-accum": "--accumulate",
    "--gradient-accumulation": "--accumulate",
    "--gradient-accumulation-steps": "--accumulate",
    "--gpu": "--device",
    "--batch": "--batch-size",
    "--bs": "--batch-size",
    "--optim": "--optimizer",
    "--strategy": "--strategies",
}
TAKES_MODEL = (  # commands whose first word is a model, or a run's name; --model may stand before it
    "run", "rehearse", "predict", "explain", "timeline", "plan", "stages", "fit", "blocks",
)  # fmt: skip
OF_COMMAND = {("plan", "--memory"): "--budget", ("fit", "--budget"): "--memory"}
SWITCHES = {"--amp": "amp-bf16", "--bf16": "amp-bf16", "--fp16": "amp-fp16"}  # the precision that each asks for
PRECISIONS = {
    "float32": "fp32", "float": "fp32", "no": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16",
    "amp": "amp-bf16",
}  # fmt: skip
ANSWERS = {  # options that gcprof has not, and what to write instead
    "--fit": "gcprof fit MODEL finds the smallest GPU",
    "--memory": "gcprof fit MODEL --memory SIZE finds what fits",
    "--lr": "an optimizer's options follow its name: --optimizer adamw:lr=0.001",
    "--epochs": "one training step is looked at; a whole script goes behind --: gcprof rehearse -- python train.py",
    **dict.fromkeys(
        ("--seq-len", "--sequence-length", "--image-size", "--hidden-size", "--layers"),
        "a model's options follow its name: hf:gpt2:sequence=512; `gcprof models NAME` lists them",
    ),
}
OTHER_NAMES = {  # of commands, in other tools
    "profile": "run",
    "measure": "run",
    "benchmark": "run",
    "estimate": "rehearse",
    "optimize": "fit",
    "max-batch": "fit MODEL --batch-size max",
}


def understood(words: Sequence[str]) -> list[str]:
    """Return the words of a command with --model, options of other tools and `_` in options as ours; others stay."""
    read: list[str] = []
    before = ""  # the option as it was typed, whose value comes next
    for word in words:
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-") if flag.startswith("--") else flag
        ours = OF_COMMAND.get((words[0], flag)) or OPTIONS.get(flag, flag)
        if flag == "--model" and words[0] in TAKES_MODEL:
            read += [value] if equals else []
        elif flag in SWITCHES and not equals:
            read += ["--precision", SWITCHES[flag]]
        elif flag.startswith("--"):
            read.append(f"{ours}{equals}{_value(flag, value)}")
        else:
            read.append(_value(before, word))
        before = "" if equals else flag
    return read


def _value(option: str, value: str) -> str:
    """Return the value of an option; of a precision in our words."""
    if OPTIONS.get(option, option) != "--precision":
        return value
    named = [PRECISIONS.get(word.removeprefix("torch."), word.removeprefix("torch.")) for word in value.split(",")]
    is_mixed = option.startswith("--mixed")
    return ",".join(f"amp-{word}" if is_mixed and word in ("bf16", "fp16") else word for word in named)


def usage(error: Any, words: Sequence[str], commands: Iterable[str]) -> tuple[str, str | None]:
    """Return the message of an error of click's, and as its hint what may be meant, an example, or the help."""
    message = " ".join(error.format_message().split())
    message = message[:1].lower() + message[1:]
    context = error.ctx
    path = context.command_path if context else " ".join(["gcprof", *words[:1]])
    if unknown := re.match(r"no such command '(.*?)'", message):
        return unknown[0], _command(unknown[1], words, commands) or "gcprof --help"
    option = getattr(error, "option_name", None)
    if option and message.startswith("no such option"):
        options = [word for parameter in context.command.params for word in parameter.opts] if context else []
        return f"no such option: {option}", ANSWERS.get(option) or nearest(option, options) or f"{path} --help"
    if message.startswith("missing") and context and context.command.epilog:
        return message.rstrip("."), f"for example {context.command.epilog.splitlines()[0]}"
    return message, f"{path} --help"


def refuse_behind(*flags: str) -> None:
    """Raise UserError if the script's words have one of these options, which are to stand before them."""
    script = SCRIPT.get()
    for flag in flags:
        if flag in script:
            place, ours = script.index(flag), split_script(COMMAND.get())[0]
            right = shlex.join([*ours, *script[place:], "--", *script[:place]])
            raise UserError(f"{flag} is behind the command, which takes it as its own", hint=f"gcprof {right}")


def _command(word: str, words: Sequence[str], commands: Iterable[str]) -> str | None:
    """Return a hint for a word that is no command: a script, or one that is like a command."""
    if word.endswith(".py") or word.startswith("python"):
        return f"gcprof rehearse -- {shlex.join([*(['python'] if word.endswith('.py') else []), *words])}"
    if word in OTHER_NAMES:
        return f"did you mean 'gcprof {OTHER_NAMES[word]}'?"
    return nearest(word, commands, before="gcprof ")
