"""How several runs side by side look, on screens of all kinds and as CSV."""

import msgspec
import pytest

from profiler.analysis.comparison import Comparison
from profiler.core.record import Environment, Record
from profiler.views.tables import comparison
from tests import examples, golden_files, make
from tests.compared_runs import compare_runs
from tests.make import MIB
from tests.printed_comparisons import before_and_after, printed

H100 = msgspec.structs.replace(
    examples.ENVIRONMENT, device_name="NVIDIA H100 80GB HBM3", device_bytes=900 * MIB, driver="580.65.06"
)
T4 = msgspec.structs.replace(examples.ENVIRONMENT, device_name="Tesla T4", device_bytes=1100 * MIB)


def devices() -> Comparison:
    """Three devices: one that puts the strategies in another order, and one that is predicted."""
    return compare_runs(
        [
            ("h200", on("cuda", examples.ENVIRONMENT, (0.100, 0.120, 0.130))),
            ("h100", on("cuda", H100, (0.150, 0.200, 0.190))),
            ("ref:predicted-t4/mnist-cnn", on("fake:t4", T4, (0.900, 1.100, 1.300))),
        ]
    )


def on(device: str, environment: Environment, seconds: tuple[float, ...]) -> list[Record]:
    names = ("none", "segments:k=2", "segments:k=8")
    return [
        examples.point(
            name,
            segments=int(name[-1]) if name != "none" else 1,
            seconds=second,
            round=number,
            environment=environment,
            case=make.case(name, device=device),
        )
        for name, second in zip(names, seconds, strict=True)
        for number in ((1,) if device.startswith("fake") else (1, 2, 3))
    ]


CASES = {"pair": before_and_after, "devices": devices}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_comparison_looks_as_it_did(name):
    golden_files.compare(f"compare-{name}-80.txt", printed(CASES[name](), width=80))


@pytest.mark.parametrize("name", CASES)
def test_the_file_looks_as_it_did(name):
    golden_files.compare(f"compare-{name}.csv", comparison.csv(CASES[name]()))


def test_the_changes_are_those_of_the_values():
    """The ratio that is shown is that of the two medians beside it."""
    found = devices()

    for match in found.matches:
        baseline, *others = match.cells
        for cell in others:
            assert cell.time.ratio == pytest.approx(cell.step_seconds / baseline.step_seconds)
            assert cell.peak.ratio == cell.peak_bytes / baseline.peak_bytes
