"""Which levers `gcprof fit` tries and proposes, on steps whose bytes are set by hand."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from profiler.analysis.rows import rows as read_rows
from profiler.core.case import Choice, Trial
from profiler.core.errors import UserError
from profiler.core.plan_file import PlanFile
from profiler.core.record import Record
from profiler.planning.chain import Plan
from profiler.training import label_of
from profiler.views.plots import frontier, picture
from profiler.workflows import fit_search
from profiler.workflows.fit_search import Search, Way
from profiler.workflows.plan_fitting import moves_enough
from tests import make
from tests.planning_chains import equal_stages

MIB = 1 << 20


class Steps:
    """A model on a rehearsed GPU, whose blocks are no chain; `peaks` are MiB by label, or two: peak and reserved."""

    def __init__(self, peaks: dict[str, int | tuple[int, int]], default: int) -> None:
        self.peaks, self.default, self.ran = peaks, default, list[str]()
        self.case = replace(make.record("none").case, device="rehearse:h100")
        self.engine = self

    def calibration(self) -> None:
        return None

    def run(self, trials: Iterable[Trial]) -> Iterator[Record]:
        for trial in trials:
            label = str(trial.case.label)
            self.ran.append(label)
            both = self.peaks.get(label, self.default)
            peak, reserved = both if isinstance(both, tuple) else (both, both)
            record = make.record(str(trial.case.strategy), peak=peak * MIB)
            readings = replace(record.readings, reserved_bytes=reserved * MIB)
            yield replace(record, case=trial.case, readings=readings)


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Any:
    def refuse(*words: object, **named: object) -> None:
        raise UserError("no chain", hint="")

    monkeypatch.setattr(fit_search, "stages", refuse)

    def made(peaks: dict[str, int | tuple[int, int]], *, limit: int, default: int, context: int = 0) -> Any:
        model: Any = Steps(peaks, default)
        return Search(model, limit * MIB, context * MIB), model

    return made


def labels(ways: Iterable[Any]) -> list[str]:
    return [str(way.label) for way in ways]


def test_a_loss_in_chunks_that_saves_under_one_percent_is_left_out(search):
    """A small head: 1,000 MiB become 995, and under `all` 600 become 599."""
    finder, _ = search({"all": 600, "none+chunk-loss": 995, "all+chunk-loss": 599}, limit=500, default=1000)
    ways = finder.ways(())

    assert not ways
    assert "chunk-loss" in finder.left_out


def test_levers_help_together_that_do_not_help_alone(search):
    """Other kernels lower nothing by themselves: with steps in the backward the two fit."""
    peaks = {"all": 60, "none+in-backward": 90, "all+in-backward": 55, "none+fused+in-backward": 80,
             "all+fused+in-backward": 45}  # fmt: skip
    finder, model = search(peaks, limit=50, default=100)

    assert labels(finder.ways(())) == ["all+fused+in-backward"]
    assert "all+expandable-segments" not in model.ran  # the tensors alone are too large


@pytest.mark.parametrize(("reserved", "proposed"), [(45, ["all+expandable-segments"]), (75, ["all+micro-batches:n=8"])])
def test_expandable_segments_are_proposed_where_reserved_alone_is_too_large_and_they_lower_it(
    search, reserved, proposed
):
    """Of 50 MiB, `all` takes 40, of which 70 are reserved."""
    peaks = {"all": (40, 70), "all+expandable-segments": (40, reserved), "none+micro-batches:n=8": 55,
             "all+micro-batches:n=8": 30}  # fmt: skip
    finder, _ = search(peaks, limit=50, default=100)

    assert labels(finder.ways(())) == proposed
    assert ("expandable-segments" in finder.left_out) is (reserved == 75)


def test_expandable_segments_are_tried_too_where_a_plan_fits_and_faster_ones_only_reserve_too_much(
    search, monkeypatch: pytest.MonkeyPatch
):
    """Planned with them, the step fits as well: which way is faster, their times decide."""
    finder, _ = search({"all": 60}, limit=50, default=100)

    def planned(chosen: Any) -> Way:
        finder._is_short = fit_search.EXPANDABLE not in chosen
        return Way(label=label_of("plan", chosen))

    monkeypatch.setattr(finder, "plan", planned)
    monkeypatch.setattr(finder, "_is_slower", lambda chosen, way: True)

    found = labels(finder.ways(()))

    assert {"plan", "plan+expandable-segments"} <= {*found}


def test_a_step_that_fits_is_run_once(search):
    finder, model = search({}, limit=200, default=100)

    assert labels(finder.ways(())) == model.ran == ["none"]


def test_no_lever_is_tried_where_cuda_itself_takes_the_memory(search):
    finder, model = search({}, limit=50, default=1, context=50)

    assert not finder.ways(())
    assert model.ran == ["none"]
    assert finder.left_out == {"all levers": "CUDA itself takes 50.0 MiB: see --context"}


def test_a_plan_is_also_run_with_fused_kernels_which_are_faster_where_they_save_nothing(search):
    finder, _ = search({"all": 60, "none+in-backward": 90, "all+in-backward": 55}, limit=50, default=100)
    finder.ways(())
    plan = PlanFile(plan="1 [2] 3", segments=(), fingerprint={})

    (fused,) = finder.further(Way(label=Choice("plan+in-backward"), plan=plan, added_seconds=1.0))

    assert (str(fused.label), fused.plan, fused.added_seconds) == ("plan+fused+in-backward", plan, 1.0)


@pytest.mark.parametrize(("output_bytes", "is_enough"), [(MIB // 2, False), (2 * MIB, True)])
def test_inputs_of_under_one_percent_of_the_peak_are_not_moved_to_the_host(output_bytes, is_enough):
    chain = replace(equal_stages(3, output=output_bytes, saved=output_bytes), traced_peak_bytes=100 * MIB)

    assert moves_enough(chain, Plan(items=(0, (1,), 2), offloaded=(1,))) is is_enough


def test_the_picture_has_a_step_line_for_each_curve(tmp_path, monkeypatch):
    """A plan serves every memory from its own peak to that of the next plan."""
    figures: list[Any] = []
    monkeypatch.setattr(
        frontier, "picture", lambda *words, **more: figures.append(picture(*words, **more)) or figures[0]
    )
    rows = read_rows([make.record("none", peak=100 * MIB), make.record("all", peak=50 * MIB)])
    curves = {"without levers": [(50 * MIB, 1.3), (100 * MIB, 1.0)], "with all": [(25 * MIB, 1.5)]}
    path = frontier.plot_levers(curves, rows, chosen=rows[1], limit=60 * MIB, path=tmp_path / "frontier.png")

    assert path.read_bytes().startswith(b"\x89PNG")
    drawn = {str(line.get_label()): line.get_xydata() for line in figures[0].axes[0].get_lines()}
    points = [(float(x), round(y)) for x, y in drawn["plans without levers"]]
    assert points == [(50.0, 30), (100.0, 30), (100.0, 0)]
    assert drawn["chosen"][0][0] == 50.0
