"""The published systems: their files, their figures, and four of them run for real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from profiler.analysis.reproduction import TABLE, UNITS
from profiler.cli import answer
from profiler.core.errors import UserError
from profiler.core.record import Note
from profiler.request import spec
from profiler.runs import store
from profiler.runs.writer import Writer
from profiler.workflows import reproduce
from profiler.workflows.reproduce import SIZES, System
from tests import make
from tests.commands import gcprof

ROOT = Path(__file__).parents[1]
NAMES = reproduce.names()
RANDOM_STATE = 5056  # bytes of the CPU's, which every checkpoint keeps

SMALL = """
title = "one"
source = "nobody"
[full]
model = "mlp"
strategies = "all"
[cpu]
reduced = "batch 2"
batch_size = 2
[[row]]
strategy = "none"
quantity = "saved_bytes"
published = 5
unit = "B"
[[row]]
strategy = "all"
quantity = "peak_change"
unit = "%"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "system.toml"
    path.write_text(text)
    return path


def cases(system: System, size: str, device: str = "cuda:0"):
    request = getattr(system, size).request
    return list(dict.fromkeys(trial.case for trial in spec.check(request, lambda word: device).trials))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_every_figure_is_about_exactly_one_case_of_its_plan_or_is_fitted_to_at_least_three(name, size):
    system = reproduce.find(name)
    planned = cases(system, size, device="cpu" if size == "cpu" else "cuda:0")

    for wanted in getattr(system, size).wanted:
        chosen = sum(wanted.chooses(case) for case in planned)
        is_fitted = wanted.quantity.endswith("_growth")
        assert chosen >= 3 if is_fitted else chosen == 1, (wanted.label, wanted.quantity, chosen)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_smaller_on_a_cpu_is_said(name):
    system = reproduce.find(name)
    measured = [
        {(case.model, case.strategy, case.batch_size, case.accumulate) for case in cases(system, size)}
        for size in SIZES
    ]

    assert (measured[0] != measured[1]) == (system.cpu.reduced is not None)
    assert system.full.reduced is None


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_is_of_a_known_quantity_in_a_unit_of_its_kind(name):
    system = reproduce.find(name)

    for wanted in (*system.full.wanted, *system.cpu.wanted):
        assert wanted.unit in UNITS[TABLE[wanted.quantity].kind], (wanted.label, wanted.quantity)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('source = "nobody"', 'sauce = "nobody"'),
        ('model = "mlp"', 'modle = "mlp"'),
        ("published = 5", "publisht = 5"),
        ('strategy = "all"\nq', 'strategy = "al"\nq'),
    ],
)
def test_a_word_that_means_nothing_is_refused(tmp_path, old, new):
    assert SMALL.count(old) == 1

    with pytest.raises((UserError, msgspec.ValidationError)):
        reproduce.load(written(tmp_path, SMALL.replace(old, new)))


def test_a_row_may_differ_between_the_sizes_and_stand_for_several_figures(tmp_path):
    more = SMALL + 'cpu = { strategy = ["all", "none"], published = -3 }\n'

    system = reproduce.load(written(tmp_path, more))

    assert [one.strategy for one in system.full.wanted] == ["none", "all"]
    assert [(one.strategy, one.published) for one in system.cpu.wanted] == [("none", 5), ("all", -3), ("none", -3)]
    assert (system.full.request.batch_size, system.cpu.request.batch_size) == (None, "2")
    assert system.cpu.request.model == "mlp"


EXPECTED: dict[str, list[Any]] = {  # ours, in the order of the file
    "dense-16-32": [64, 192, 196],
    "simple-mlp": [64 * 45 * 4 + 8, 64 * 45 * 4 + 8 + RANDOM_STATE, "1 2 1", "equal"],
    "adam-states": [2980, 2980, 0, 2980, 2 * 2980 + 24, (2 * 2980 + 24) / 2980, 2 * 2980 + 24, (2 * 2980 + 24) / 2980],
    "three-policies": [
        9, 9, "1 1 1 1 1 1 1 1 1", None, 9 * 10 // 2, "9 8 7 6 5 4 3 2 1", 2, None, 9 + 6, "2 2 2 2 2 2 1 1 1", 5, None,
    ],
}  # fmt: skip


quick, *rest = EXPECTED


@pytest.mark.slow
@pytest.mark.parametrize("name", [quick, *(pytest.param(name, marks=pytest.mark.nightly) for name in rest)])
@pytest.mark.usefixtures("shared")
def test_what_can_be_counted_by_hand_is_what_comes_out(name, here, capfd):
    code = answer(["reproduce", name, "--device", "cpu", "-o", "run", "--json"])

    found = json.loads(capfd.readouterr().out)["reproduction"]
    ours = [line["ours"] for line in found["lines"]]
    assert code == 0
    assert [mine for mine, counted in zip(ours, EXPECTED[name], strict=True) if counted is not None] == [
        counted for counted in EXPECTED[name] if counted is not None
    ]
    assert "the source does not say" in (here / "run" / "derived" / "reproduction.md").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_a_run_is_shown_again_without_torch_and_is_of_no_other_system(here, capsys):
    assert answer(["reproduce", "dense-16-32", "--device", "cpu", "-o", "run"]) == 0
    first = capsys.readouterr().out

    again = gcprof("reproduce", "dense-16-32", "--from", "run", torch=False)
    other = gcprof("reproduce", "adam-states", "--from", "run", torch=False)

    assert (again.returncode, again.stdout) == (0, first)
    assert other.returncode == 4
    assert "'run' is not a run of adam-states" in other.stderr


@pytest.mark.parametrize(
    ("device", "full", "arithmetic"),
    [("cpu", False, 16584), ("cpu", True, 16584), ("cuda:0", False, 11528), ("cuda:0", True, 11528)],
)
def test_where_both_sizes_are_the_same_run_the_arithmetic_is_that_of_the_device(device, full, arithmetic):
    system = reproduce.find("simple-mlp")

    for size in (system.size_on(device, full=full), system.size_of(set(cases(system, "full", device)))):
        (line,) = (one for one in size.wanted if one.quantity == "saved_bytes" and one.strategy == "every")  # k is 2
        assert line.published == arithmetic


@pytest.mark.parametrize(
    ("device", "full", "size"), [("cpu", False, "cpu"), ("cpu", True, "full"), ("cuda:0", False, "full")]
)
def test_the_published_size_runs_where_it_is_asked_for_and_wherever_there_is_a_gpu(device, full, size):
    system = reproduce.find("bert")

    assert system.size_on(device, full=full) is getattr(system, size)
    assert system.size_of(set(cases(system, size, device))) is getattr(system, size)


@pytest.mark.parametrize(("notes", "code"), [((), 4), ((Note(code="GCP020", text="a real run"),), 0)])
def test_steps_of_a_trainer_are_no_steps_of_ours(notes, code, here, capsys):
    plan = spec.check(reproduce.find("hf-trainer").cpu.request, lambda word: "cpu").trials
    records = [make.record(case=trial.case, round=trial.round, notes=notes) for trial in plan]
    folder = here / "run"
    store.create(folder, plan=plan, command="gcprof", environment=records[0].environment, sources={})
    writer = Writer(folder)
    for record in records:
        writer.append(record)
    writer.close()

    assert answer(["reproduce", "hf-trainer", "--from", "run"]) == code
    assert ("'run' is not a run of hf-trainer" in capsys.readouterr().err) == bool(code)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["three-polices"], "did you mean 'three-policies'?"),
        (["--full"], "needs a name"),
        (["bert", "--from", "x", "--full"], "--full has no effect with --from"),
        (["bert", "--from", "x", "--from", "y", "--json"], "--json prints one run"),
    ],
)
def test_impossible_words_are_refused(words, complaint, here, capsys):
    assert answer(["reproduce", *words]) == 2

    assert complaint in capsys.readouterr().err
