"""`gcprof fit`: the fastest way to fit a memory, the largest batch, the smallest GPU; what is said to fit was run.

Which levers are tried and proposed is told by steps whose bytes are set by hand.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from profiler.analysis.advice import Place
from profiler.analysis.rows import rows as read_rows
from profiler.cli import answer
from profiler.core import gpu_specs, plan_file
from profiler.core.case import Case, Choice, Trial
from profiler.core.gpu_specs import CONTEXT_BYTES as CONTEXT
from profiler.core.gpu_specs import MOST_BYTES, parse
from profiler.core.plan_file import PlanFile
from profiler.core.record import Readings, Record
from profiler.planning.chain import Plan
from profiler.runs import store
from profiler.views.plots import frontier, picture
from profiler.workflows import fit_sizes, stages
from profiler.workflows.fit import Fitted
from profiler.workflows.fit_search import Search, Way
from profiler.workflows.plan_fitting import moves_enough
from tests import make
from tests.make import MIB, record
from tests.planning_chains import equal_stages

pytestmark = pytest.mark.usefixtures("shared")

MODEL = ("transformer:layers=3,width=32", "--batch-size", "8", "--optimizer", "adamw", "--device", "cpu")


def fitted(capsys: pytest.CaptureFixture[str], memory: str, *flags: str) -> tuple[int, dict]:
    return answer(["fit", *MODEL, "--memory", memory, "--json", *flags]), json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_the_fastest_way_that_fits_is_chosen_and_run_in_a_folder(here, capsys):
    """The bytes of the chosen way are those of a run of it by its name."""
    code, whole = fitted(capsys, "8GiB")
    (as_it_is,) = whole["ways"]
    assert (code, as_it_is["way"], as_it_is["is_chosen"]) == (0, "none", True)
    peak = whole["ways"][0]["peak_bytes"]
    code, found = fitted(capsys, f"{peak * 7 // 10}B")

    assert code == 0
    (chosen,) = [way for way in found["ways"] if way["is_chosen"]]
    assert chosen["fits"]
    assert chosen["needed_bytes"] == chosen["peak_bytes"] <= peak * 7 // 10
    run = store.load(max((here / "results").glob("*fit*"), key=lambda folder: folder.stat().st_mtime))
    none, *others = [record for record in run.records if record.round == 1]
    (proved,) = [record for record in others if str(record.case.label) == chosen["way"]]
    assert none.readings.peak_bytes == peak
    assert (proved.readings.peak_bytes, proved.outcome) == (chosen["peak_bytes"], "ok")
    assert chosen["gradients"] in ("bit-equal", "within noise")


@pytest.mark.nightly
def test_a_step_that_its_gpu_cannot_hold_is_planned_as_on_a_larger_one(here, capsys):
    """Without numbers of the step as it is, no plan could be made, nor told from micro-batches, which cost more."""
    model = ("transformer:layers=6,width=256,sequence=512", "--batch-size", "48", "--json")

    assert answer(["fit", *model, "--device", "rehearse:t4:memory=2GiB"]) == 0
    small = json.loads(capsys.readouterr().out)
    assert answer(["fit", *model, "--device", "t4", "--memory", "2GiB"]) == 0

    large = json.loads(capsys.readouterr().out)
    keys = ("peak_bytes", "needed_bytes", "fits", "is_chosen")
    assert [[way[key] for key in keys] for way in small["ways"]] == [
        [way[key] for key in keys] for way in large["ways"]
    ]
    assert small["ways"][0]["needed_bytes"] > 2 * 2**30
    (chosen,) = [way["way"] for way in small["ways"] if way["is_chosen"]]
    assert chosen.startswith("plan:")


@pytest.mark.nightly
@pytest.mark.parametrize("model", ["transformer:layers=4,width=128,sequence=256", "cifar-resnet"])
def test_where_nothing_fits_no_rehearsed_way_is_chosen_or_needs_less_than_what_is_proved_of_its_levers(
    here, capsys, model
):
    """PyTorch's allocator gives the bytes of the ways, all with levers among them."""
    words = ["fit", model, "--batch-size", "16", "--device", "h100", "--context", "0", "--memory"]
    assert answer([*words, "1MiB", "--json"]) == 5
    found = json.loads(capsys.readouterr().out)

    assert not any(way["fits"] or way["is_chosen"] for way in found["ways"])
    peaks = [(way["way"].partition("+")[2], way["peak_bytes"]) for way in found["ways"]]
    held = [(peak, found["floors"][levers]) for levers, peak in peaks if levers in found["floors"]]
    assert len(held) >= 2
    assert all(0.2 * peak < least <= peak for peak, least in held)


def fitted_of(sizes: dict[str, int], **left_out: str) -> Fitted:
    rows = read_rows([record(label, peak=size * MIB) for label, size in sizes.items()])
    return Fitted(limit_bytes=10 * MIB, context_bytes=0, context_source=None, rows=rows, left_out=left_out)


def test_of_two_ways_alike_the_one_with_fewer_levers_is_shown_and_a_lever_that_helps_is_not_left_out():
    """SGD's fused kernel saves nothing, so a way with it and the same way without it take the same bytes and time."""
    fitted = fitted_of({"none": 100, "none+chunk-loss+fused": 60, "none+chunk-loss": 60, "none+fused": 100})

    assert [str(row.case.label) for row in fitted.shown] == ["none", "none+chunk-loss"]
    assert fitted.missing == ["nothing fits: the least is none+chunk-loss, which needs 50.0 MiB more"]
    helping = fitted_of({"none": 100, "all+fused": 9}, fused="it lowers neither", offload="neither")
    assert [line for line in helping.table.below if "left out" in line] == ["left out: offload: neither"]


@pytest.mark.slow
def test_a_consent_that_no_lever_needs_and_a_step_that_cannot_run_are_errors_in_one_line(here, capsys):
    assert answer(["fit", *MODEL, "--memory", "1GiB", "--allow", "4bit"]) == 2
    assert "8bit" in capsys.readouterr().err
    assert answer(["fit", "hf:gpt2:seq=8", "--memory", "1GiB", "--device", "cpu"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "gcprof: hf:gpt2 has no 'seq'; the nearest is 'sequence'"


def test_a_step_with_room_for_any_has_addresses_for_segments_that_grow(hollow, here):
    """Ways of fit that need more than a GPU has are rehearsed on one with room."""
    words = ["rehearse", "mlp", "--device", "t4", "--memory", f"{MOST_BYTES}B", "--strategies"]

    assert answer([*words, "none+expandable-segments", "-o", "run"]) == 0

    assert [record.outcome for record in store.load(Path("run")).records] == ["ok", "ok"]


SMALL = "transformer:layers=4,width=32"
GIB = 2**30


@pytest.mark.nightly
def test_a_rehearsed_batch_is_the_last_for_which_pytorch_itself_has_room(here, capsys):
    assert answer(["fit", SMALL, "--batch-size", "max", "--memory", "700MiB", "--device", "t4", "--json"]) == 0

    ways = json.loads(capsys.readouterr().out)["ways"]
    for one in ways:  # also of a plan that is faster than the smallest, and takes less than its costs say
        assert (one["outcome"], one["beyond_outcome"], one["evidence"]) == ("ok", "out_of_memory", "rehearsed")
        assert one["needed_bytes"] <= 700 * 2**20
    none, every, planned, *_ = ways
    assert [one["way"] for one in (none, every)] == ["none", "all"]
    assert none["batch_size"] < every["batch_size"] <= planned["batch_size"]
    rates = [one["samples_per_second"] for one in ways]
    assert [one["is_chosen"] for one in ways] == [rate == max(rates) for rate in rates]
    assert plan_file.read(Path(Choice(planned["way"]).options["file"])).segments


@pytest.mark.parametrize(
    ("device", "device_bytes", "context"), [("cuda:0", 470, 400), ("cuda:0", None, None), ("fake:h100", 470, None)]
)
def test_what_cuda_takes_is_measured_where_the_device_is(device, device_bytes, context):
    readings = Readings(peak_bytes=5, reserved_bytes=70, device_bytes=device_bytes)
    engine = SimpleNamespace(run=lambda trials: iter([make.record(readings=readings)]))

    assert stages.measured_context(engine, make.case(device=device)) == context


class Steps:
    """A model whose blocks are no chain, with steps that need what is set by hand: an outcome, bytes, reserved ones."""

    def __init__(self, case: Case, need: Callable[[Case], tuple[str, int, int | None]]) -> None:
        self.need, self.ran = need, list[str]()
        engine: Any = self
        self.step = stages.Step(case=case, engine=engine)

    def run(self, trials: Iterable[Trial], done: Iterable[Record] = ()) -> Iterator[Record]:
        for case in (trial.case for trial in trials):
            self.ran.append(str(case.label))
            outcome, peak, reserved = self.need(case)
            readings = replace(make.record().readings, peak_bytes=peak, reserved_bytes=reserved)
            yield make.record(case=case, outcome=outcome, readings=readings)

    def ask(self, *words: object, **about: object) -> dict[str, str]:
        return {"refused": "the blocks are no chain"}


def sized(case: Case, measured: int, foreseen: int, outcome: str = "ok") -> Any:
    """So many bytes a sample, measured and foreseen, and under `all` half of that; no lever can be applied."""

    def need(case: Case) -> tuple[str, int, None]:
        nbytes = (case.batch_size or 1) * (foreseen if case.is_predicted else measured)
        said = "skipped" if case.levers else "ok" if case.is_predicted else outcome
        return said, nbytes // (1 + (case.strategy == "all")), None

    return Steps(case, need).step


@pytest.mark.parametrize(
    ("measured", "outcome", "batch_size"), [(10, "ok", 10), (11, "ok", 9), (101, "ok", 0), (1, "out_of_memory", 0)]
)
def test_a_batch_whose_step_does_not_fit_is_not_the_largest(measured, outcome, batch_size):
    place = Place(case=make.case(batch_size=1), limit=100, context_bytes=0)
    step = sized(place.case, measured=measured, foreseen=10, outcome=outcome)

    none, *_ = fit_sizes.of_batches(step, place).rungs(place, ())

    assert none.reach == batch_size


@pytest.mark.parametrize(
    ("need", "gpus"),
    [(30, [("none", "rtx-5090"), ("all", "v100-16")]), (900, [("none", None)])],
)  # fmt: skip
def test_the_smallest_gpu_has_room_for_the_step_and_cuda_and_the_next_smaller_has_not(need, gpus):
    names = sorted(gpu_specs.names(), key=lambda name: -gpu_specs.find(name).memory_bytes)
    sizes = {make.case(device=f"rehearse:{name}", batch_size=1): gpu_specs.find(name).memory_bytes for name in names}
    places = [Place(case=case, limit=size, context_bytes=CONTEXT) for case, size in sizes.items()]

    rungs = fit_sizes.of_gpus(sized(places[0].case, need * GIB, 0), places).rungs(places[0], ())

    assert [(rung.label, parse(rung.place.case.device).name if rung.reach else None) for rung in rungs] == gpus


def search(peaks: dict[str, int | tuple[int, int]], *, limit: int, default: int, context: int = 0) -> Any:
    """The search within a limit, and its model, on a rehearsed GPU; `peaks` are MiB by label, or two: and reserved."""

    def need(case: Case) -> tuple[str, int, int]:
        both = peaks.get(str(case.label), default)
        peak, reserved = both if isinstance(both, tuple) else (both, both)
        return "ok", peak * MIB, reserved * MIB

    model = Steps(make.case(device="rehearse:h100"), need)
    return Search(model.step, limit * MIB, context * MIB), model


def labels(ways: Iterable[Any]) -> list[str]:
    return [str(way.label) for way in ways]


def test_a_loss_in_chunks_that_saves_under_one_percent_is_left_out():
    """A small head: 1,000 MiB become 995, and under `all` 600 become 599."""
    finder, _ = search({"all": 600, "none+chunk-loss": 995, "all+chunk-loss": 599}, limit=500, default=1000)

    assert not finder.ways(())
    assert "chunk-loss" in finder.left_out


def test_levers_help_together_that_do_not_help_alone():
    """Other kernels lower nothing by themselves: with steps in the backward the two fit."""
    peaks = {"all": 60, "none+in-backward": 90, "all+in-backward": 55, "none+fused+in-backward": 80,
             "all+fused+in-backward": 45}  # fmt: skip
    finder, model = search(peaks, limit=50, default=100)

    assert labels(finder.ways(())) == ["all+fused+in-backward"]
    assert "all+expandable-segments" not in model.ran  # the tensors alone are too large


@pytest.mark.parametrize(("reserved", "proposed"), [(45, ["all+expandable-segments"]), (75, ["all+micro-batches:n=8"])])
def test_expandable_segments_are_proposed_where_reserved_alone_is_too_large_and_they_lower_it(reserved, proposed):
    """Of 50 MiB, `all` takes 40, of which 70 are reserved."""
    peaks = {"all": (40, 70), "all+expandable-segments": (40, reserved), "none+micro-batches:n=8": 55,
             "all+micro-batches:n=8": 30}  # fmt: skip
    finder, _ = search(peaks, limit=50, default=100)

    assert labels(finder.ways(())) == proposed
    assert ("expandable-segments" in finder.left_out) is (reserved == 75)


def test_no_lever_is_tried_where_cuda_itself_takes_the_memory():
    finder, model = search({}, limit=50, default=1, context=50)

    assert not finder.ways(())
    assert model.ran == ["none"]
    assert finder.left_out == {"all levers": "CUDA itself takes 50.0 MiB: see --context"}


@pytest.mark.parametrize("back", ["in-backward", "in-backward:mib=1"])
def test_a_plan_is_also_run_with_fused_kernels_which_are_faster_where_they_save_nothing(back):
    finder, _ = search({"all": 60, f"none+{back}": 90, f"all+{back}": 55}, limit=50, default=100)
    finder.ways(())
    plan = PlanFile(plan="1 [2] 3", segments=(), fingerprint={})

    (fused,) = finder.further([Way(label=Choice(f"plan+{back}"), plan=plan, added_seconds=1.0)])

    assert (str(fused.label), fused.plan.levers, fused.added_seconds) == (f"plan+fused+{back}", ("fused", back), 1.0)


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
    assert [(float(x), round(y)) for x, y in drawn["plans without levers"]] == [(50.0, 30), (100.0, 30), (100.0, 0)]
    assert drawn["chosen"][0][0] == 50.0
