"""`gcprof run --resume` with other options: what was typed replaces a run's own words, and nothing else changes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from profiler.cli import answer
from profiler.core.case import Trial
from profiler.core.errors import UserError
from profiler.core.stats import Sampling
from profiler.engines.local import Local
from profiler.request import spec, stored_request
from profiler.request.spec import Request
from profiler.runs import run_diff, store
from tests import examples, make

SWEEPS = [
    Request(model="mlp", strategies="all,sqrt", device="cpu", rounds=2, samples=3),
    Request(model="mlp,transformer", segments="1,2", device="cpu", precision="fp32,bf16", seed=7, verify="off"),
    Request(model="mlp", device="cpu", batch_size="8,16", keep_grads=True, repair_batchnorm=True),
    Request(model="mlp", device="cpu", precision_target="2.5%", max_samples=40, warmup=0, predict=True),
    Request(model="mlp", device="cpu", ranks="1,2", parallel="ddp", accumulate="1,2", blocks="layers.*"),
    Request(model="mlp", device="fake:h100,fake:t4", routing="worst"),
    Request(model="mlp", device="rehearse:h100", strategies="all"),
    Request(model="mlp", device="cuda:0", calibrate=None, optimizer="adamw,sgd:lr=0.5"),
]


def plan_of(words: Request) -> tuple[Trial, ...]:
    return spec.check(words, lambda word: word).trials


def changed(plan: tuple[Trial, ...], **words: Any) -> Request:
    return stored_request.changed(plan, Request(**words), as_it_was="gcprof run --resume run --new-run")


@pytest.mark.slow
@pytest.mark.parametrize("words", SWEEPS)
def test_a_changed_seed_is_all_that_changes(words: Request):
    whole = {**{name: getattr(words, name) for name in stored_request.given(words)}, "seed": 3}

    assert plan_of(changed(plan_of(words), seed=3)) == plan_of(Request(**whole))


@pytest.mark.parametrize(
    ("word", "replaced"),
    [
        ({"strategies": "sqrt"}, {"strategies": "sqrt", "segments": None}),
        ({"segments": "4"}, {"strategies": None, "segments": "4"}),
        ({"samples": 9}, {"samples": 9, "max_samples": None}),
        ({"model": "transformer"}, {"model": "transformer"}),
        ({"rounds": 1}, {"rounds": 1}),
        ({"predict": True}, {"predict": True}),
        ({"device": "cuda:1"}, {"device": "cuda:1"}),
        ({"ranks": "2"}, {"ranks": "2"}),
    ],
    ids=str,
)
def test_one_word_replaces_what_it_names(word: dict[str, Any], replaced: dict[str, Any]):
    own = {"model": "mlp", "strategies": "all", "segments": "1,2", "device": "cuda:0", "rounds": 2, "max_samples": 50}

    assert plan_of(changed(plan_of(Request(**own)), **word)) == plan_of(Request(**{**own, **replaced}))


def test_a_plan_that_no_options_make_is_not_changed():
    cases = (make.case("none"), make.case("none", batch_size=8), make.case("all"))

    with pytest.raises(UserError, match="--seed cannot be changed in it") as refusal:
        changed(tuple(Trial(case=case) for case in cases), seed=3)

    assert refusal.value.hint == "gcprof run --resume run --new-run measures it as it was"


@pytest.mark.parametrize("words", SWEEPS[:4])
@pytest.mark.parametrize("device", ["fake:t4,fake:h100", "rehearse:h100"])
def test_what_another_kind_of_device_does_not_take_is_left_out(words: Request, device: str):
    lost = dict.fromkeys(("rounds", "samples", "precision_target", "max_samples", "predict"))

    there = plan_of(changed(plan_of(words), device=device))
    back = plan_of(changed(there, device="cpu"))

    assert there == plan_of(msgspec.structs.replace(words, device=device, **lost))
    assert back == plan_of(msgspec.structs.replace(words, **lost))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that is complete, of options that are not the usual ones."""
    monkeypatch.chdir(tmp_path)
    cases = [make.case(word, model="mlp", batch_size=64, device="cpu", samples=1) for word in ("none", "all")]
    return examples.run(tmp_path / "run", [make.record(case=case) for case in cases]).folder


@pytest.mark.usefixtures("shared")
def test_only_what_was_typed_is_named_where_a_run_began_otherwise(run: Path, capsys: Any):
    assert answer(["run", "--resume", "run", "--samples", "9"]) == 2

    error = capsys.readouterr().err.splitlines()[0]
    assert error.partition("would be mixed: ")[2].startswith("samples 1 -> 9")
    assert not any(word in error for word in ("model", "strategy", "rounds"))


@pytest.mark.nightly
@pytest.mark.usefixtures("shared")
def test_the_command_of_the_hint_measures_the_plan_with_that_one_value_changed(run: Path, capsys: Any):
    answer(["run", "--resume", "run", "--samples", "9"])
    hint = capsys.readouterr().err.splitlines()[-1].removeprefix("hint: ").partition(" measures")[0]

    assert answer([*shlex.split(hint)[1:], "-o", "new"]) == 0

    before, after = (store.load(Path(name)).manifest.plan for name in ("run", "new"))
    assert [(trial.case.strategy, trial.case.samples) for trial in after] == [("none", 9), ("all", 9)]
    assert [trial.case.model for trial in after] == [trial.case.model for trial in before]


def test_a_difference_of_sampling_is_told_without_names_of_ours():
    then, now = Trial(case=make.case(sampling=Sampling())), Trial(case=make.case(samples=9))
    before = store.Manifest(created="", command="", plan=(then,), environment=examples.ENVIRONMENT)
    names = {"samples", "sampling"}

    changes = run_diff.changes(before, environment=examples.ENVIRONMENT, sources={}, plan=(now,), names=names)

    assert changes == (
        "samples 5 -> 9",
        "sampling precision_target=0.03 max_samples=100 max_seconds=2.0 -> -",
    )


@pytest.mark.usefixtures("shared")
def test_a_run_of_other_threads_goes_on_by_their_number(engine: Local, tmp_path: Path, capsys: Any):
    here = engine.survey()["cpu"]
    many = msgspec.structs.replace(here, num_threads=(here.num_threads or 1) + 6)
    store.create(tmp_path / "run", plan=(Trial(case=make.case()),), command="", environment=many, sources={})

    assert answer(["run", "--resume", str(tmp_path / "run")]) == 2

    error, hint = capsys.readouterr().err.splitlines()[-2:]
    assert error.endswith(f"would be mixed: num_threads {many.num_threads} -> {here.num_threads}")
    assert hint.startswith(f"hint: OMP_NUM_THREADS={many.num_threads} gcprof run --resume {tmp_path / 'run'} goes on")
