"""Trials -> the Request that makes them, so that some of its words can be changed. Knows nothing of torch."""

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
TOGETHER = (("strategies", "segments"), ("device", "gpus"))  # one axis with two words: giving either replaces both
OF_WORDS = {  # the fields of a case that a word changes, if they have other names than the word
    "model": ("model", "batch_size"),  # the default batch size is the model's own
    "strategies": ("strategy",),
    "segments": ("strategy",),
    "gpus": ("device",),
    "ranks": ("ranks", "parallel"),
    **dict.fromkeys(("samples", *sampling.UNTIL), ("samples", "sampling")),
    **{setting.key: (name,) for name, setting in SETTINGS.items() if setting.key},
}
OF_KIND = ("rounds", "samples", *sampling.UNTIL, "predict", "calibrate", "routing")  # not for every kind of device
MORE_PASSES = ("rounds", "predict", "calibrate")  # words that change which passes a trial has


def given(words: Request) -> tuple[str, ...]:
    """Return the names of the words that were given."""
    return tuple(name for name, value in msgspec.structs.asdict(words).items() if value is not None)


def fields_of(names: Iterable[str]) -> set[str]:
    """Return the fields of a case that these words change."""
    return {field for name in names for field in OF_WORDS.get(name, (name,))}


def changed(plan: Sequence[Trial], words: Request, *, as_it_was: str) -> Request:
    """Return the words of a run's plan with `words` in place of its own; every other value stays.

    Words that another kind of device does not take are dropped. `as_it_was` is the command that measures the plan
    unchanged. Raises UserError if no options make the plan, as for `gcprof plan` and merged runs.
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
    """Return FAKE or REHEARSE as the words' device begins with it; "" for a device that is measured on."""
    return next((kind for kind in (FAKE, REHEARSE) if (words.device or "").startswith(kind)), "")


def _rest(plan: Iterable[Trial], names: Collection[str]) -> set[tuple[Any, ...]]:
    """Return what a plan has besides these words, without the rows added for a model's own checkpoints."""
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
    """Return the words of a fixed number of samples, or those of when to stop that are not the defaults."""
    if not case.sampling:
        return {"samples": case.samples}
    usual = Sampling()
    until = {name: value for name in sampling.UNTIL if (value := getattr(case.sampling, name)) != getattr(usual, name)}
    if "precision_target" in until:
        until["precision_target"] = f"{until['precision_target'] * 100:.12g}%"
    return {"samples": None, **until}


def _batch_sizes(cases: Iterable[Case], *, is_model_kept: bool) -> str | None:
    """Return the batch sizes, or None if each is its model's default; code of a model that is replaced is not read."""
    if all(
        (is_model_kept or consent.is_plain(case.model, models.TABLE))
        and case.batch_size == model_choice.batch_size(case.model)
        for case in cases
    ):
        return None
    return _joined(case.batch_size for case in cases)
