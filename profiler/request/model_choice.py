"""Checks what a model takes: a batch size, a folder of data, smaller options on a CPU. Knows nothing of torch."""

from __future__ import annotations

from pathlib import Path

from profiler.core import catalogue
from profiler.core.case import Case, Choice
from profiler.core.errors import UserError
from profiler.training import models


def batch_size(model: Choice) -> int | None:
    """Return the model's default batch size; None if it has none."""
    default = catalogue.read(model.name, models.TABLE).parameters.get("batch_size")
    return int(default) if default is not None and default.isdecimal() else None


def check_batch_size(text: str | None, chosen: list[Choice]) -> None:
    """Raises UserError where a batch size was given, and a chosen model makes a batch of its own size."""
    for model in chosen if text is not None else []:
        if "batch_size" not in catalogue.read(model.name, models.TABLE).parameters:
            hint = "give its function a parameter batch_size, or leave it out"
            raise UserError(f"--batch-size has no effect on '{model}', which makes its own batch", hint=hint)


def optimizer_text(case: Case) -> str:
    """Return the optimizer for a title that is written before the model is built: a user's model may bring its own."""
    return f"{case.optimizer}{'' if catalogue.listed(case.model.name, models.TABLE) else ' or its own'}"


def smaller(model: Choice, remarks: list[str]) -> Choice:
    """Return the model with its smaller defaults for a CPU, for options that were not given."""
    without_gpu = models.WITHOUT_GPU.get(model.name, {})
    options = {key: value for key, value in without_gpu.items() if key not in model.options}
    chosen = catalogue.resolve(Choice.of(model.name, {**model.options, **options}), models.TABLE)
    if options:
        defaults = {option.name: option.default for option in catalogue.read(model.name, models.TABLE).options}
        full = Choice.of(model.name, {**model.options, **{key: defaults[key] for key in options}})
        remarks.append(f"{chosen} stands in for the full-size {model} on a CPU; for that, say {full}")
    return chosen


def check_data(directory: str | None, chosen: list[Choice]) -> None:
    """Raises UserError for a folder without MNIST's files, and for a chosen model that reads no files."""
    if directory is None:
        return
    if not directory or not Path(directory).is_dir():
        raise UserError(f"--data: '{directory}' is not a folder", hint="name the folder that holds the IDX files")
    for model in chosen:
        if "data_directory" not in catalogue.read(model.name, models.TABLE).parameters:
            message = f"--data has no effect on '{model}', which makes its own batch"
            raise UserError(message, hint="leave it out for this model")
    if not any((Path(directory) / below / name).is_file() for below, name in models.DATA_FILES):
        names = " or ".join(str(Path(below) / name) for below, name in models.DATA_FILES)
        raise UserError(f"--data: '{directory}' holds no MNIST files", hint=f"it should have {names}")
