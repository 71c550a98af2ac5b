"""How every other view looks on narrow and wide screens, and that it keeps its numbers there."""

import re
from collections import Counter
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from profiler.analysis.advice import Place, Rung
from profiler.analysis.reproduction import PublishedFigure, Reproduction, lines
from profiler.analysis.rows import rows
from profiler.core.case import Choice
from profiler.core.record import Readings
from profiler.core.stats import Sampling
from profiler.views.tables import Paper, Table, comparison, details, explanation, plans, text
from profiler.views.tables.columns import main
from tests import examples, golden_files, make
from tests.long_explanation import longest
from tests.make import MIB

GIB = 1024 * MIB


def _explanation() -> list[Table]:
    return explanation.tables(longest(), title="transformer:layers=12, segments:k=2 on fake:cuda")


def _samples() -> list[Table]:
    case = make.case("segments:k=2", sampling=Sampling(precision_target=0.02))
    noisy = make.record(case=case, seconds=tuple(0.1 + 0.013 * (step % 7) for step in range(23)))
    return details.samples(examples.table([*examples.troubled(), noisy]))


def _beside() -> list[Table]:
    """Predicted beside measured, with how far off the prediction is."""
    foreseen = [make.record(name, case=make.case(name, device="fake:cpu"), peak=peak * MIB)
                for name, peak in (("none", 103), ("segments:k=2", 61))]  # fmt: skip
    seen = [make.record("none", peak=100 * MIB), make.failed("segments:k=2", "out_of_memory", "tried 1 GiB")]
    return main(examples.table([*seen, *foreseen]))


def _fits() -> list[Table]:
    """The largest batches, measured, and the smallest GPUs, rehearsed; no GPU holds the last."""

    def rung(label: str, reach: int, place: Place, beyond: Place | None, peak: int, **further) -> Rung:
        case = replace(place.case, strategy=Choice(label))
        readings = Readings(peak_bytes=peak, reserved_bytes=peak, step_seconds=(0.5,))
        (row,) = rows([make.record(case=case, readings=readings)])
        return Rung(label=Choice(label), reach=reach, place=place, beyond=beyond, row=row, **further)

    def place(gpu: str, memory: int, size: int) -> Place:
        return Place(case=make.case(device=gpu, batch_size=size), limit=memory * GIB, context_bytes=GIB // 2)

    (failed,) = rows([make.failed("all", "out_of_memory", "no room")])
    (more,) = rows([make.record(readings=Readings(peak_bytes=12 * GIB, reserved_bytes=12 * GIB))])
    batches = [
        rung("none", 1200, place("cuda:0", 12, 1200), place("cuda:0", 12, 1201), 11 * GIB, further=more),
        rung("segments:k=8,split=balanced+chunk-loss", 2400, place("cuda:0", 12, 2400), None, 11 * GIB),
    ]
    t4, l4, h100 = (place(f"rehearse:{gpu}", memory, 8) for gpu, memory in (("t4", 14), ("l4", 22), ("h100", 79)))
    gpus = [
        rung("none", 0, h100, None, 90 * GIB),
        rung("all", 2, l4, t4, 20 * GIB, further=failed),
    ]
    return [
        plans.sizes_table(batches, of_batches=True, chosen=batches[1], title="mine: the largest batch", below=()),
        plans.sizes_table(gpus, of_batches=False, chosen=gpus[1], title="mine: the smallest GPU", below=("context",)),
    ]


def _reproduction() -> list[Table]:
    wanted = (
        PublishedFigure(
            label="", quantity="saved_bytes", strategy=Choice("segments:k=2"), unit="MiB", published=1139.25
        ),
        PublishedFigure(label="", quantity="peak_change", strategy=Choice("segments:k=4"), unit="%", published=-60),
        PublishedFigure(label="", quantity="peak_change", strategy=Choice("segments:k=3"), unit="%", published=-50),
    )
    found = [*examples.sweep((2, 4)), *examples.troubled()]
    compared = Reproduction(
        name="bert", title="a published system of some length", source="a blog of 2019", unsaid=("the batch",),
        reduced="width 64 of 768", environment=examples.ENVIRONMENT, device="cuda:0", evidence="measured",
        lines=lines(wanted, found, reduced=True),
    )  # fmt: skip
    return [comparison.published_table(compared)]


MAIN = {
    "troubled": examples.troubled(),
    "rounds": examples.sweep() + examples.sweep(round=2),
    "models": examples.sweep((2,), device="fake:cuda") + examples.sweep((4,), model="mlp:width=4096"),
}
VIEWS: dict[str, Callable[[], list[Table]]] = {
    **{name: lambda records=records: main(examples.table(records)) for name, records in MAIN.items()},
    "explanation": _explanation,
    "samples": _samples,
    "beside": _beside,
    "fits": _fits,
    "reproduction": _reproduction,
}


@pytest.mark.parametrize("name", VIEWS)
def test_the_view_looks_as_it_did(name):
    golden_files.compare(f"{name}-80.txt", text(VIEWS[name](), Paper(80)).plain)


@pytest.mark.parametrize("name", VIEWS)
def test_no_number_is_cut_and_no_line_too_wide_at_any_width(name):
    whole = numbers(text(VIEWS[name]()).plain)

    for width in range(40, 201, 5):
        printed = text(VIEWS[name](), Paper(width)).plain
        assert not whole - numbers(printed), f"at width {width}"
        assert not [line for line in printed.splitlines() if len(line) > width and len(line.split()) > 2], (
            f"at width {width}"
        )


def numbers(text: str) -> Counter[str]:
    """What stands for itself as a number in a text, sign and thousands included."""
    return Counter(re.findall(r"(?<!\S)[-+±]?\d[\d,]*(?:\.\d+)?(?!\S)", text))


def test_a_name_that_is_whole_at_80_columns_is_whole_on_every_wider_screen():
    rows = examples.table(examples.sweep() + examples.sweep(round=2))

    for width in range(80, 200):
        lines = text(main(rows), Paper(width=width)).plain.splitlines()
        assert {str(row.case.label) for row in rows} <= {line.split("  ")[0] for line in lines}, width
