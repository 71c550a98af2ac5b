"""Options as other tools call them, understood as ours: `--amp`, `--dtype bfloat16`, `--grad-accum 4`, `--gpu h100`."""

from __future__ import annotations

from collections.abc import Sequence

OPTIONS = {
    "--dtype": "--precision",
    "--mixed-precision": "--precision",
    "--mixed_precision": "--precision",
    "--grad-accum": "--accumulate",
    "--gradient-accumulation": "--accumulate",
    "--gradient-accumulation-steps": "--accumulate",
    "--gradient_accumulation_steps": "--accumulate",
    "--gpu": "--device",
    "--batch": "--batch-size",
    "--bs": "--batch-size",
    "--batch_size": "--batch-size",
    "--optim": "--optimizer",
}
OF_COMMAND = {("plan", "--memory"): "--budget", ("fit", "--budget"): "--memory"}
SWITCHES = {"--amp": "amp-bf16", "--bf16": "amp-bf16", "--fp16": "amp-fp16"}  # the precision that each asks for
PRECISIONS = {
    "float32": "fp32", "float": "fp32", "no": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16",
}  # fmt: skip
ANSWERS = {  # options that gcprof has not, and what to write instead
    "--lr": "an optimizer's options follow its name: --optimizer adamw:lr=0.001",
    "--epochs": "one training step is looked at; a whole script goes behind --: gcprof rehearse -- python train.py",
    **dict.fromkeys(
        ("--seq-len", "--sequence-length", "--image-size", "--hidden-size", "--layers"),
        "a model's options follow its name: hf:gpt2:sequence=512; `gcprof models NAME` lists them",
    ),
}


def understood(words: Sequence[str]) -> list[str]:
    """Return the words of a command with options of other tools in ours; all others stay as they are."""
    read: list[str] = []
    before = ""  # the option as it was typed, whose value comes next
    for word in words:
        flag, equals, value = word.partition("=")
        ours = OF_COMMAND.get((words[0], flag)) or OPTIONS.get(flag, flag)
        if flag in SWITCHES and not equals:
            read += ["--precision", SWITCHES[flag]]
        elif equals and ours.startswith("--"):
            read.append(f"{ours}={_value(flag, value)}")
        else:
            read.append(ours if word == flag and word != ours else _value(before, word))
        before = word
    return read


def _value(option: str, value: str) -> str:
    """Return the value of an option; of a precision in our words."""
    if OPTIONS.get(option, option) != "--precision":
        return value
    named = [PRECISIONS.get(word.removeprefix("torch."), word.removeprefix("torch.")) for word in value.split(",")]
    is_mixed = option.startswith("--mixed")
    return ",".join(f"amp-{word}" if is_mixed and word in ("bf16", "fp16") else word for word in named)
