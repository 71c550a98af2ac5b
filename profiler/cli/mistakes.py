"""What is typed and is not ours: options as other tools call them, and what is said of wrong usage."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from profiler.cli.output import SCRIPT
from profiler.core.errors import nearest

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
COMMANDS = {
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
    missing, script = re.match(r"missing option '(--[\w-]+)'", message), SCRIPT.get()
    if missing and missing[1] in script:
        place = script.index(missing[1])
        right = [*words, *script[place:], "--", *script[:place]]
        return f"{missing[1]} is behind the command, which takes it as its own", f"gcprof {shlex.join(right)}"
    if message.startswith("missing") and context and context.command.epilog:
        return message.rstrip("."), f"for example {context.command.epilog.splitlines()[0]}"
    return message, f"{path} --help"


def _command(word: str, words: Sequence[str], commands: Iterable[str]) -> str | None:
    """Return a hint for a word that is no command: a script, or one that is like a command."""
    if word.endswith(".py") or word.startswith("python"):
        return f"gcprof rehearse -- {shlex.join([*(['python'] if word.endswith('.py') else []), *words])}"
    if word in COMMANDS:
        return f"did you mean 'gcprof {COMMANDS[word]}'?"
    return nearest(word, commands, before="gcprof ")
