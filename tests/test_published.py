"""The published systems: their files, their figures beside ours by arithmetic, and four of them run for real."""

import json
from typing import Any

import pytest

from profiler.analysis.reproduction import TABLE, PublishedFigure, activation_bytes, lines
from profiler.analysis.rows import rows
from profiler.cli import answer
from profiler.core.case import Choice
from profiler.core.record import Built, Note
from profiler.views.tables import comparison
from profiler.workflows import reproduce, spec
from profiler.workflows.reproduce import SIZES
from tests import examples, make
from tests.make import MIB, case, failed, record

NAMES = reproduce.names()
RANDOM_STATE = 5056  # bytes of the CPU's, which every checkpoint keeps


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_every_figure_is_about_exactly_one_case_of_its_plan_or_is_fitted_to_at_least_three(name, size):
    system = getattr(reproduce.find(name), size)
    trials = spec.check(system.request, lambda word: "cpu" if size == "cpu" else "cuda:0").trials
    planned = {trial.case for trial in trials}

    for wanted in system.wanted:
        chosen = sum(wanted.chooses(case) for case in planned)
        is_fitted = wanted.quantity.endswith("_growth")
        assert chosen >= 3 if is_fitted else chosen == 1, (wanted.label, wanted.quantity, chosen)


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


@pytest.mark.parametrize(("notes", "code"), [((), 4), ((Note(code="GCP020", text="a real run"),), 0)])
def test_steps_of_a_trainer_are_no_steps_of_ours(notes, code, here, capsys):
    plan = spec.check(reproduce.find("hf-trainer").cpu.request, lambda word: "cpu").trials
    examples.run(here / "run", [make.record(case=trial.case, round=trial.round, notes=notes) for trial in plan])

    assert answer(["reproduce", "hf-trainer", "--from", "run"]) == code
    assert ("'run' is not a run of hf-trainer" in capsys.readouterr().err) == bool(code)


SWEEP = rows(
    [
        record("none", saved=80 * MIB, peak=100 * MIB, seconds=(1.0, 1.0, 1.0)),
        record("segments:k=2", saved=30 * MIB, peak=60 * MIB, seconds=(1.2, 1.2, 1.2)),
        record("segments:k=4", saved=20 * MIB, peak=70 * MIB, seconds=(1.3, 1.3, 1.3)),
        record("segments:k=4,split=balanced", saved=10 * MIB, peak=50 * MIB),
        failed("all", "out_of_memory", "tried 1 GiB"),
    ]
)


def one(strategy: str, quantity: str, records=SWEEP, reduced: bool = False, **fields):
    (line,) = lines(
        [PublishedFigure(label="", quantity=quantity, strategy=Choice(strategy), **fields)], records, reduced=reduced
    )
    return line


@pytest.mark.parametrize(
    ("strategy", "quantity", "unit", "expected"),
    [
        ("segments:k=2", "saved_bytes", "MB", 30 * MIB / 1e6),
        ("none", "saved_but_loss", "B", 80 * MIB - 4),
        ("none", "forward_peak_bytes", "MiB", 99),  # make.record puts it 1 MiB below the peak
        ("segments:k=2", "saved_change", "%", -62.5),
        ("segments:k=2", "peak_change", "%", -40),
        ("segments:k=2", "time_change", "%", 20),
        ("segments:k=2", "step_seconds", "ms", 1200),
        ("segments:k=2", "saved_share", "%", 50 / 60 * 100),  # of 80 - 20; balanced ones are a sweep of their own
        ("segments:k=4", "peak_share", "%", 75),  # the best is at k=2
        ("none", "parameter_bytes", "MiB", 5),
        ("none", "optimizer_ratio", "", 0),
        ("none", "gradients", "", "equal"),
    ],
)
def test_a_quantity_is_read_in_the_published_unit(strategy, quantity, unit, expected):
    ours = one(strategy, quantity, unit=unit).ours

    assert ours == (expected if isinstance(expected, str) else pytest.approx(expected))
    spread = one("segments:k=4,split=balanced", "time_change", unit="%").spread
    assert spread == pytest.approx(0.005 / 0.11)  # half the quartiles' distance, over the median of its steps


def test_calls_and_activations_of_a_chain_are_counted():
    chain = case("none", model=Choice("dense-chain:widths=16+16+16,features=16"), batch_size=8)
    calls = {"saved_bytes": 3 * 512 + 5, "block_calls": (3, 2, 1)}
    (row,) = rows([record(case=chain, **calls, peak_bytes=10_000, start_bytes=7_000, peak_gradient_bytes=400)])

    assert activation_bytes(chain) == 4 * 16 * 8 == 512
    assert TABLE["live_activations"].of([row], [row]) == 3
    assert TABLE["peak_activations"].of([row], [row]) == 2600 // 512
    unknown = rows([record(case=chain, **calls, start_bytes=7_000, peak_gradient_bytes=None)])
    assert TABLE["peak_activations"].of(unknown, unknown) is None
    assert TABLE["forward_calls"].of([row], [row]) == 6
    assert TABLE["calls_by_layer"].of([row], [row]) == "3 2 1"
    for unlike in ("dense-chain:widths=16+32", "mlp"):  # layers whose activations are not all alike
        assert activation_bytes(case("none", model=Choice(unlike))) is None


def test_growth_is_fitted_to_the_rows_that_are_ok():
    built = {size: Built(num_parameters=1, num_blocks=size, data="synthetic") for size in (9, 21, 39)}
    grown = [record(saved=size * MIB, batch_size=size, built=made) for size, made in built.items()]
    lost = failed("none", "out_of_memory", "tried", batch_size=57)
    found = rows([*grown, lost])

    assert TABLE["saved_growth"].of(found, found) == pytest.approx(1)


@pytest.mark.parametrize(
    ("strategy", "quantity", "unit", "published", "reduced", "shown"),
    [
        ("segments:k=2", "saved_bytes", "B", 30 * MIB - 4, False, "+4 B"),
        ("segments:k=2", "saved_bytes", "M", 40, False, "-25.00 %"),
        ("segments:k=2", "peak_change", "%", -60, False, "+20.00 points"),
        ("none", "gradients", "", "different", False, "differs"),
        ("segments:k=2", "peak_bytes", "MB", -40, True, "other size"),  # of a reduced model
        ("segments:k=2", "peak_change", "%", -40, True, "none"),
    ],
)
def test_a_difference_is_never_hidden_but_sizes_of_a_reduced_model_are_not_compared(
    strategy, quantity, unit, published, reduced, shown
):
    line = one(strategy, quantity, unit=unit, published=published, reduced=reduced)

    assert comparison._difference(line) == shown


@pytest.mark.parametrize("quantity", ["saved_change", "peak_change", "time_change", "saved_share", "peak_share"])
@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([record("none"), record("all", peak=1, outcome="invalid", detail="gradients differ")], "gradients differ"),
        ([record("all", saved=MIB, peak=30 * MIB)], "the run has no row without checkpointing"),
        ([record("none", outcome="timed_out", detail="in round 2"), record("all")], "none is timed out: in round 2"),
    ],
)
def test_a_row_that_is_invalid_or_has_no_baseline_is_no_saving(quantity, records, reason):
    line = one("all", quantity, rows(records), unit="%")

    assert line.ours is None
    assert reason in line.reason
