"""`gcprof run --resume` with other options: what was typed replaces a run's own words, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from profiler.cli import answer
from profiler.core.case import Trial, encode
from profiler.engines.local import Local
from profiler.request import spec
from profiler.request.spec import Request
from profiler.runs import store
from tests import examples, make

OWN = {"model": "mlp", "strategies": "all", "segments": "1,2", "device": "cuda:0", "rounds": 2, "max_samples": 50}


@pytest.mark.parametrize(
    ("word", "replaced"),
    [
        ({"strategies": "sqrt"}, {"strategies": "sqrt", "segments": None}),
        ({"segments": "4"}, {"strategies": None, "segments": "4"}),
        ({"samples": 9}, {"samples": 9, "max_samples": None}),
        ({"gpus": "a100"}, {"gpus": "a100", "device": None}),
        ({"device": "fake:t4"}, {"device": "fake:t4", "rounds": None, "max_samples": None}),
        ({"ranks": "2"}, {"ranks": "2"}),
    ],
    ids=str,
)
def test_one_word_replaces_what_it_names(word: dict[str, Any], replaced: dict[str, Any]):
    assert spec.changed(Request(**OWN), Request(**word)) == Request(**{**OWN, **replaced})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that is complete, of options that are not the usual ones."""
    monkeypatch.chdir(tmp_path)
    words = {"model": "mlp", "strategies": "all", "batch_size": "64", "device": "cpu", "rounds": 1, "samples": 1}
    plan = spec.check(Request(**words), lambda device: device).trials
    folder = examples.run(tmp_path / "run", [make.record(case=trial.case) for trial in plan]).folder
    manifest = msgspec.structs.replace(store.load(folder).manifest, plan=plan, words=words)
    (folder / "manifest.json").write_bytes(encode(manifest))
    return folder


@pytest.mark.usefixtures("shared")
def test_only_what_was_typed_is_named_where_a_run_began_otherwise(run: Path, capsys: Any):
    assert answer(["run", "--resume", "run", "--samples", "9"]) == 2

    error = capsys.readouterr().err.splitlines()[0]
    assert error.partition("would be mixed: ")[2].startswith("samples 1 -> 9")
    assert not any(word in error for word in ("model", "strategy", "rounds"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (None, "--seed cannot be changed"),
        ({"model": "evilpkg.sub:make"}, "names code or a place that is not gcprof's own"),
        ({"no_word": 1}, "no_word"),
    ],
)
def test_a_run_without_words_or_with_hostile_ones_is_not_changed(run: Path, words: Any, message: str, capsys: Any):
    document = msgspec.json.decode((run / "manifest.json").read_bytes())
    document["words"] = words
    if words is None:
        del document["words"]
    (run / "manifest.json").write_bytes(msgspec.json.encode(document))

    assert answer(["run", "--resume", "run", "--new-run", "--seed", "3"]) in (2, 4)

    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("shared")
def test_a_run_of_other_threads_goes_on_by_their_number(engine: Local, tmp_path: Path, capsys: Any):
    here = engine.survey()["cpu"]
    many = msgspec.structs.replace(here, num_threads=(here.num_threads or 1) + 6)
    store.create(tmp_path / "run", plan=(Trial(case=make.case()),), command="", environment=many, sources={})

    assert answer(["run", "--resume", str(tmp_path / "run")]) == 2

    error, hint = capsys.readouterr().err.splitlines()[-2:]
    assert error.endswith(f"would be mixed: num_threads {many.num_threads} -> {here.num_threads}")
    assert hint.startswith(f"hint: OMP_NUM_THREADS={many.num_threads} gcprof run --resume {tmp_path / 'run'} goes on")
