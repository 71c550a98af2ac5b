"""How every view looks on screens of all widths, with colours and without, and that it keeps its numbers there."""

import io
import re
from collections import Counter
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from profiler.analysis.comparison import Comparison
from profiler.analysis.explanation import Explanation, Reason, Remedy
from profiler.analysis.live_bytes import Peak, Share
from profiler.analysis.peak_floor import Floor
from profiler.analysis.reproduction import PublishedFigure, Reproduction, lines
from profiler.analysis.rows import rows
from profiler.core.case import Choice
from profiler.core.record import Record
from profiler.core.stats import Sampling
from profiler.core.trace_data import BUCKETS, CATEGORIES, GATHERED, BlockChoice, BlockChoices
from profiler.core.units import MISSING
from profiler.views.tables import Paper, Table, comparison, details, explanation, show, text
from profiler.views.tables.columns import group_table, main
from tests import examples, golden_files, make
from tests.compared_runs import compare_runs
from tests.make import MIB


def longest() -> Explanation:
    """With names that are longer than any screen."""
    name = "model.decoder.layers.{}.self_attention.projection.that.goes.on"
    work = "aten._scaled_dot_product_efficient_attention_backward.default"
    dominates = (
        "one segment dominates: 'encoder.layers.encoder_layer_10' to 'encoder.layers.encoder_layer_110', 101 of 128"
        " blocks, are recomputed at once and hold 1,021 MiB of the peak's 1,022 MiB"
    )
    coarse = BlockChoice(pattern="model.decoder.layers.*", num_blocks=128, floor_bytes=2**36, all_bytes=2**37 - 1)
    fine = replace(coarse, pattern="model.decoder.layers.*.self_attention", all_bytes=2**36)
    categories = [category for category in CATEGORIES if category not in (BUCKETS, GATHERED)]
    return Explanation(
        peak=Peak(nbytes=2**37 - 1, number=9, phase="recompute", operator=work, module=name),
        categories=tuple(Share(name=category, nbytes=2**35) for category in categories),
        modules=tuple(Share(name=name.format(10 + at), nbytes=2**33 + at) for at in range(10)),
        num_others=1234,
        others_bytes=2**34,
        floor=Floor(nbytes=2**36, static_bytes=2**35, stage=name, phase="backward", operator=work, module=name),
        remedies=tuple(Remedy(kind=kind, nbytes=1021 * MIB) for kind in explanation.REMEDIES),
        choices=BlockChoices(own=coarse, others=(fine,)),
        better=fine,
        operator_bytes=2**34,
        baseline_bytes=2**38,
        split="1+2+3+4+5+6+7+8+9+10+11+12+13+14+15+16+17",
        reason=Reason(kind="segment", text=dominates),
    )


def _samples() -> list[Table]:
    """Of one, how far its median is known; of the other also how its warm-up went and why its rounds ended."""
    seconds = tuple(0.1 + 0.013 * (step % 7) for step in range(23))
    noisy = make.record("segments:k=2", sampling=Sampling(precision_target=0.02), seconds=seconds)
    rounds = [
        make.record(
            sampling=Sampling(), round=number, seconds=(0.1 * number, 0.2, 0.3), warmup_seconds=warmup, stopped=stopped
        )
        for number, warmup, stopped in ((1, (0.9, 0.5, 0.4), "seconds"), (2, (0.8, 0.6), "target"))
    ]
    return details.samples(rows([*rounds, noisy, make.failed("all", "skipped", "not here")]))


def _reproduction() -> list[Table]:
    """Figures that are read beside a run that has them, one that has another, and one whose row ran out of memory."""
    published = {"saved_bytes": (2, "MiB", 1139.25), "peak_change": (4, "%", -60), "peak_bytes": (3, "MiB", 50)}
    wanted = [
        PublishedFigure(label="", quantity=quantity, strategy=Choice(f"segments:k={k}"), unit=unit, published=number)
        for quantity, (k, unit, number) in published.items()
    ]
    compared = Reproduction(
        name="bert", title="a published system", source="a blog of 2019", unsaid=("the batch",), reduced="width 64",
        environment=examples.ENVIRONMENT, device="cuda:0", evidence="measured",
        lines=lines(wanted, [*examples.sweep((2, 4)), *examples.troubled()], reduced=True),
    )  # fmt: skip
    return [comparison.published_table(compared)]


def three_runs() -> Comparison:
    """Two measured in two rounds, of which the second lost, gained and slowed rows, and one that is predicted."""
    h100 = replace(examples.ENVIRONMENT, device_name="NVIDIA H100 80GB HBM3", device_bytes=900 * MIB)

    def of(environment, seconds: dict[int, float], device: str, rounds: int) -> list[Record]:
        return [
            examples.point(name, segments=k, seconds=second, round=at + 1, environment=environment, device=device)
            for k, second in seconds.items() for name in (f"segments:k={k}" if k > 1 else "none",)
            for at in range(rounds)
        ]  # fmt: skip

    lost = make.case("segments:k=4", device="cuda")
    missing = make.failed("segments:k=4", "out_of_memory", "tried 96 MiB", case=lost, environment=h100)
    return compare_runs(
        [
            ("before", of(examples.ENVIRONMENT, {1: 0.1, 2: 0.12, 4: 0.13, 8: 0.14}, "cuda", 2)),
            ("after", [*of(h100, {1: 0.1, 2: 0.16, 8: 0.15, 16: 0.2}, "cuda", 2), missing]),
            ("ref:predicted", of(h100, {1: 0.9, 2: 1.1, 8: 1.3}, "fake:h100", 1)),
        ]
    )


MODELS = examples.sweep((2,), device="fake:cuda") + examples.sweep((4,), model=Choice("mlp:width=4096"))
VIEWS: dict[str, Callable[[], list[Table]]] = {
    "troubled": lambda: main(rows(examples.troubled())),
    "models": lambda: main(rows(MODELS)),
    "explanation": lambda: explanation.tables(longest(), title="transformer:layers=12, segments:k=2 on fake:cuda"),
    "samples": _samples,
    "reproduction": _reproduction,
    "compare": lambda: comparison.tables(three_runs()),
    "axes": lambda: details.over_axes(rows(examples.batches()), over=["batch_size"]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_the_view_looks_as_it_did(name):
    golden_files.compare(f"{name}-80.txt", text(VIEWS[name](), Paper(80)).plain)


def test_the_file_of_a_comparison_looks_as_it_did():
    golden_files.compare("compare.csv", comparison.csv(three_runs()))


@pytest.mark.parametrize("name", VIEWS)
def test_no_number_is_cut_and_no_line_too_wide_at_any_width(name):
    whole = numbers(text(VIEWS[name]()).plain)

    for width in range(40, 201, 5):
        printed = text(VIEWS[name](), Paper(width)).plain
        assert not whole - numbers(printed), f"at width {width}"
        wide = [line for line in printed.splitlines() if len(line) > width and len(line.split()) > 2]
        assert not wide, f"at width {width}"


def numbers(text: str) -> Counter[str]:
    """What stands for itself as a number in a text, sign and thousands included."""
    return Counter(re.findall(r"(?<!\S)[-+±]?\d[\d,]*(?:\.\d+)?(?!\S)", text))


def test_a_baseline_without_a_time_is_no_baseline_of_times():
    found = group_table(rows([make.record("none", **make.UNTIMED), make.record("all")]))

    heads = {column.label: column.cells[0] for column in found.columns}
    assert "time against none" not in heads
    assert (heads["step ms"], heads["peak against none"]) == (MISSING, "baseline")


def test_a_terminal_gets_savings_in_green_and_failures_in_red_and_a_pipe_gets_no_colours(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    failed = make.failed("sqrt", "out_of_memory", "no room")
    tables = main(rows([make.record("none"), make.record("all", peak=60 * MIB), failed]))
    screen, pipe = io.StringIO(), io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)

    show(tables, file=screen)
    show(tables, file=pipe)

    assert re.findall(r"\x1b\[32m(.*?)\x1b\[0m", screen.getvalue()) == ["-40 %"]
    assert re.findall(r"\x1b\[31m(.*?)\x1b\[0m", screen.getvalue()) == ["out of memory"]
    assert pipe.getvalue() == f"{text(tables).plain}\n"
