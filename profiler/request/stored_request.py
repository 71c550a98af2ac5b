"""A plan's own words, so that some of them can be changed: the way back from trials. Knows nothing of torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from profiler.core import gpu_kinds
from profiler.core.case import FAKE, OPERATORS, SETTINGS, Case, Trial
from profiler.core.errors import UserError
from profiler.core.gpu_kinds import REHEARSE
from profiler.core.stats import Sampling
from profiler.request import consent, device_choice, model_choice, sampling, spec
from profiler.request.spec import Request
from profiler.training import models

AXES = {"model": "model", "optimizer": "optimizer", "precision": "precision", "accumulate": "accumulate",
        "parallel": "parallel", "ranks": "ranks", "strategies": "strategy"}  # fmt: skip
TOGETHER = (("strategies", "segments"), ("device", "gpus"))  # one axis by two words: either replaces both
OF_WORDS = {  # the fields of a case that a word changes, where they are not called as it is
    "model": ("model", "batch_size"),  # whose default is the model's own
    "strategies": ("strategy",),
    "segments": ("strategy",),
    "gpus": ("device",),
    "ranks": ("ranks", "parallel"),
    **dict.fromkeys(("samples", *sampling.UNTIL), ("samples", "sampling")),
    **{setting.key: (name,) for name, setting in SETTINGS.items() if setting.key},
}
OF_KIND = ("rounds", "samples", *sampling.UNTIL, "predict", "calibrate", "routing")  # not of every kind of device
MORE_PASSES = ("rounds", "predict", "calibrate")  # words that change which passes a trial has


def given(words: Request) -> tuple[str, ...]:
    """The names of the words that were said."""
    return tuple(name for name, value in msgspec.structs.asdict(words).items() if value is not None)


def fields_of(names: Iterable[str]) -> set[str]:
    """The fields of a case that these words change."""
    return {field for name in names for field in OF_WORDS.get(name, (name,))}


def changed(plan: Sequence[Trial], words: Request, *, as_it_was: str) -> Request:
    """The words of a plan with `words` in place of its own; every other value stays.

    But for those that another kind of device does not take. `as_it_was` is the command that measures the plan
    unchanged. Raises UserError where no options make the plan, as those of `gcprof plan` and of merged runs.
    """
    typed = given(words)
    own = _words(plan, is_model_kept="model" not in typed)
    unfit = OF_KIND if {"device", "gpus"} & set(typed) and _kind(words) != _kind(own) else ()
    lost = [*unfit, *(name for pair in TOGETHER if set(pair) & set(typed) for name in pair)]
    own = msgspec.structs.replace(own, **dict.fromkeys(lost))
    asked = spec.override(own, words)
    devices = {trial.case.device for trial in plan}
    trials = spec.check(asked, lambda word: word if word in devices else device_choice.any_device(word)).trials
    names = {*typed, *unfit}
    if _rest(plan, names) != _rest(trials, names):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in typed)
        message = f"no options of `gcprof run` make the plan of this run, so that {flags} cannot be changed in it"
        raise UserError(message, hint=f"{as_it_was} measures it as it was")
    return asked


def _kind(words: Request) -> str:
    """Of the one device of these words, or of several, which are of one kind; the engine's own are measured on."""
    return next((kind for kind in (FAKE, REHEARSE) if (words.device or "").startswith(kind)), "")


def _rest(plan: Iterable[Trial], names: Collection[str]) -> set[tuple[Any, ...]]:
    """What a plan is but for these words, and for the rows that code of the user's own gets besides."""
    blank = dict.fromkeys(fields_of(names) & set(Case.__struct_fields__))
    trials = [trial for trial in plan if not trial.if_own]
    if "calibrate" in names:
        trials = [trial for trial in trials if trial.case.is_predicted] or trials
    elif "predict" in names:
        trials = [trial for trial in trials if not trial.case.is_predicted] or trials
    return {
        (
            msgspec.structs.replace(trial.case, **blank),
            *(() if set(MORE_PASSES) & set(names) else (trial.round, trial.passes)),
            trial.is_paired,
            trial.budget,
        )
        for trial in trials
    }


def _words(plan: Iterable[Trial], *, is_model_kept: bool) -> Request:
    trials = [trial for trial in plan if not trial.if_own]
    calibrates = any(OPERATORS in trial.passes and "equality" not in trial.passes for trial in trials)
    predicted = [trial.case for trial in trials if trial.case.is_predicted]
    measured = [] if calibrates else [trial.case for trial in trials if not trial.case.is_predicted]
    cases = measured or predicted
    is_timed = not cases[0].device.startswith((FAKE, REHEARSE))
    axes = {name: _joined(getattr(case, field) for case in cases) for name, field in AXES.items()}
    return Request(
        **{**_settings(cases[0]), **_samples(cases[0]), **axes, **_devices(cases)},
        batch_size=_batch_sizes(cases, is_model_kept=is_model_kept),
        rounds=max(trial.round for trial in trials) if is_timed else None,
        predict=True if measured and predicted else None,
        calibrate=calibrates or None,
    )


def _joined(values: Iterable[Any]) -> str | None:
    words = dict.fromkeys(str(value) for value in values if value is not UNSET and value is not None)
    return ",".join(words) or None


def _devices(cases: Iterable[Case]) -> dict[str, str | None]:
    devices = [case.device for case in cases]
    kinds = [kind for device in devices if (kind := gpu_kinds.of(device))]
    return {"gpus": _joined(kinds)} if kinds else {"device": _joined(devices)}


def _settings(case: Case) -> dict[str, Any]:
    values = {setting.key or name: getattr(case, name) for name, setting in SETTINGS.items()}
    return {key: value for key, value in values.items() if value is not UNSET and value is not False}


def _samples(case: Case) -> dict[str, Any]:
    """A fixed number of samples, or until when there are more, as far as it is not as usual."""
    if not case.sampling:
        return {"samples": case.samples}
    usual = Sampling()
    until = {name: value for name in sampling.UNTIL if (value := getattr(case.sampling, name)) != getattr(usual, name)}
    if "precision_target" in until:
        until["precision_target"] = f"{until['precision_target'] * 100:.12g}%"
    return {"samples": None, **until}


def _batch_sizes(cases: Iterable[Case], *, is_model_kept: bool) -> str | None:
    """The batch sizes, or None where each is its model's own; code that is not kept is not looked at."""
    if all(
        (is_model_kept or consent.is_plain(case.model, models.TABLE))
        and case.batch_size == model_choice.batch_size(case.model)
        for case in cases
    ):
        return None
    return _joined(case.batch_size for case in cases)
