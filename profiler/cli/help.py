"""The layout of help: commands in groups, options in panels, examples below. Plain text, so that it is quick."""

from __future__ import annotations

import inspect
from typing import Any

from typer.core import TyperCommand, TyperGroup

GROUPS: dict[str, dict[str, str]] = {  # group -> command -> what it does, short enough for any terminal
    "Measure": {
        "run": "Measure memory and time by strategy",
        "doctor": "Check versions, devices and a trial",
    },
    "Without a GPU": {
        "rehearse": "Run PyTorch's CUDA code without GPU",
        "explain": "Explain what holds the peak",
        "fit": "Find the fastest way to fit a memory",
        "plan": "Find the fastest plan within memory",
    },
    "Read": {
        "show": "Show a run as a table",
        "compare": "Compare runs: settings, peaks and times",
        "report": "Write runs as an HTML page",
        "runs": "List, tag, merge, check, remove runs",
    },
}
MORE: dict[str, dict[str, str]] = {  # the same for commands that only --help-all lists
    "More": {
        "predict": "Predict memory without the device",
        "timeline": "Draw live memory over a step",
        "stages": "Measure the costs of each stage",
        "plot": "Plot a run as a picture",
        "export": "Export a run for other tools",
        "blocks": "Show the blocks of a model",
        "models": "List models and optimizers with options",
        "strategies": "List strategies with their options",
        "note": "Explain a note below a table",
        "reproduce": "Run a published system, compare figures",
    },
}
RUNS: dict[str, dict[str, str]] = {  # the same for `gcprof runs`
    "Runs": {
        "list": "List the runs, newest last",
        "tag": "Tag a run to find it",
        "rm": "Remove runs, asking for each first",
        "merge": "Merge several runs into one",
        "validate": "Check every line of a run",
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


def about(doc: str | None) -> str:
    """Return a command's docstring without its example, which goes below the options."""
    paragraphs = inspect.cleandoc(doc or "").split("\n\n")
    return "\n\n".join(paragraph for paragraph in paragraphs if not paragraph.startswith(EXAMPLE))


def examples(name: str, doc: str | None, *, of_script: bool = False) -> tuple[str, ...]:
    """Return three example commands to paste, the docstring's own first; `of_script` those with a user's command."""
    paragraphs = inspect.cleandoc(doc or "").split("\n\n")
    own = [" ".join(text.removeprefix(EXAMPLE).split()) for text in paragraphs if text.startswith(EXAMPLE)]
    return (*own, *(SCRIPT_EXAMPLES.get(name, ()) if of_script else MORE_EXAMPLES[name]))


def panel_of(option: Any) -> str:
    """Return the panel that an option names, else the one of PANELS that lists it, else OTHER."""
    return option.rich_help_panel or next((panel for panel, names in PANELS.items() if option.name in names), OTHER)


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
        """Write arguments and options in the panels of PANELS, those of none under OTHER."""
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], **{panel: [] for panel in PANELS}, OTHER: []}
        parameters = self.get_params(ctx)
        is_long = sum(one.param_type_name == "option" for one in parameters) > MOST
        is_short = is_long and not ctx.meta[ALL]
        for parameter in parameters:
            if is_short and parameter.name in RARE:
                continue
            if (line := parameter.get_help_record(ctx)) is not None:
                word, about = line
                is_option = parameter.param_type_name == "option"
                word = word.replace(" range>", ">") if is_option else word.partition(" <")[0]
                panel = panel_of(parameter) if is_option else "Arguments"
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
        for group, summaries in shown.items():
            with formatter.section(group):
                formatter.write_dl(list(summaries.items()))
        if shown is GROUPS:
            formatter.write(f"\n`gcprof {ALL}` lists {sum(map(len, MORE.values()))} more commands.\n")
