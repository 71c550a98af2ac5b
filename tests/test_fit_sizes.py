"""`gcprof fit --batch-size max`, and without a memory: what is said to fit was run, and so was one step further."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from profiler.analysis.advice import Place
from profiler.cli import answer
from profiler.core import catalogue, gpu_specs, plan_file
from profiler.core.case import Choice, Trial
from profiler.core.gpu_specs import CONTEXT_BYTES as CONTEXT
from profiler.core.gpu_specs import parse
from profiler.core.record import Readings, Record
from profiler.runs import store
from profiler.training import models
from profiler.workflows import fit_sizes, stages
from profiler.workflows.stages import Step
from tests import make
from tests.conftest import run_folder
from tests.user_models import broken

pytestmark = pytest.mark.usefixtures("shared")

SMALL = "transformer:layers=4,width=32"
GIB = 2**30


@pytest.mark.nightly
def test_each_gets_its_largest_batch_and_it_is_measured_there_and_one_further(engine, here, capsys):
    cases = [make.case(model=catalogue.resolve(Choice(SMALL), models.TABLE), batch_size=size) for size in (4, 5)]
    four, five = (
        one.readings.peak_bytes for one in engine.run(Trial(case=case.foreseen, passes=("memory",)) for case in cases)
    )
    limit = four + (five - four) * 5 // 2  # so that none has six samples, and not seven

    code = answer(["fit", SMALL, "--batch-size", "max", "--memory", f"{limit}B", "--device", "cpu", "--json"])

    found = json.loads(capsys.readouterr().out)
    none, every, planned, *_ = found["ways"]
    assert code == 0
    assert [one["way"] for one in (none, every)] == ["none", "all"]
    assert none["batch_size"] == 6
    assert 6 < every["batch_size"] < planned["batch_size"]
    for one in found["ways"]:
        assert one["needed_bytes"] <= limit < one["beyond_bytes"]
        assert (one["evidence"], one["has_estimated_times"]) == ("measured", False)
    rates = [one["samples_per_second"] for one in found["ways"]]
    assert [one["is_chosen"] for one in found["ways"]] == [rate == max(rates) for rate in rates]
    run = store.load(run_folder(here / "results"))
    file = Path(Choice(planned["way"]).options["file"])
    assert plan_file.read(file).segments
    assert str(file) in run.manifest.sources


@pytest.mark.nightly
def test_a_rehearsed_batch_is_the_last_for_which_pytorch_itself_has_room(here, capsys):
    words = ["fit", SMALL, "--batch-size", "max", "--memory", "700MiB", "--device", "t4", "--json"]

    assert answer(words) == 0

    ways = json.loads(capsys.readouterr().out)["ways"]
    for one in ways:  # also of a plan that is faster than the smallest, and takes less than its costs say
        assert (one["outcome"], one["beyond_outcome"], one["evidence"]) == ("ok", "out_of_memory", "rehearsed")
        assert one["needed_bytes"] <= 700 * 2**20


@pytest.mark.parametrize(
    ("device", "device_bytes", "context"), [("cuda:0", 470, 400), ("cuda:0", None, None), ("fake:h100", 470, None)]
)
def test_what_cuda_takes_is_measured_where_the_device_is(device, device_bytes, context):
    readings = Readings(peak_bytes=5, reserved_bytes=70, device_bytes=device_bytes)
    engine = SimpleNamespace(run=lambda trials: iter([make.record(readings=readings)]))

    assert stages.measured_context(engine, make.case(device=device)) == context


class Sized:
    """An engine whose steps need so many bytes a sample, measured and foreseen, and under `all` half of that."""

    def __init__(self, measured: int, foreseen: int, outcome: str = "ok") -> None:
        self.bytes_of = {False: measured, True: foreseen}
        self.outcome = outcome

    def run(self, trials: Iterable[Trial], done: Iterable[Record] = ()) -> Iterator[Record]:
        for case in (trial.case for trial in trials):
            size = case.batch_size * self.bytes_of[case.is_predicted] // (1 + (case.strategy == "all"))
            outcome = "skipped" if case.levers else "ok" if case.is_predicted else self.outcome
            yield make.record(case=case, outcome=outcome, readings=Readings(peak_bytes=size))

    def ask(self, *words: object, **about: object) -> dict[str, str]:
        return {"refused": "the blocks are no chain"}


@pytest.mark.parametrize(
    ("measured", "outcome", "batch_size"),
    [(10, "ok", 10), (11, "ok", 9), (101, "ok", 0), (1, "out_of_memory", 0)],
)
def test_a_batch_whose_step_does_not_fit_is_not_the_largest(measured, outcome, batch_size):
    place = Place(case=make.case(batch_size=1), limit=100, context_bytes=0)
    step = Step(case=place.case, engine=Sized(measured=measured, foreseen=10, outcome=outcome))

    none, *_ = fit_sizes.of_batches(step, place).rungs(place, ())

    assert none.reach == batch_size


@pytest.mark.parametrize(
    ("need", "gpus"),
    [(30, [("none", "rtx-5090"), ("all", "v100-16")]), (900, [("none", None)])],
)  # fmt: skip
def test_the_smallest_gpu_has_room_for_the_step_and_cuda_and_the_next_smaller_has_not(need, gpus):
    engine = Sized(measured=need * GIB, foreseen=0)
    names = sorted(gpu_specs.names(), key=lambda name: -gpu_specs.find(name).memory_bytes)
    places = [
        Place(
            case=make.case(device=f"rehearse:{name}", batch_size=1),
            limit=gpu_specs.find(name).memory_bytes,
            context_bytes=CONTEXT,
        )
        for name in names
    ]

    step = Step(case=places[0].case, engine=engine)

    rungs = fit_sizes.of_gpus(step, places).rungs(places[0], ())

    found = [(rung.label, parse(rung.place.case.device).name if rung.reach else None) for rung in rungs]
    assert found == gpus


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["mlp", "--memory", "60%", "--device", "fake:cuda"], "how much memory 'fake:cuda' has is not known"),
        (["mlp", "--memory", "1GiB", "--device", "t4,h100"], "--batch-size max is of one GPU"),
        ([f"{broken.__file__}:no_loss", "--memory", "1GiB", "--device", "cpu"], "makes its own batch, of one size"),
    ],
)
def test_what_has_no_largest_batch_is_refused(here, shared, capsys, words, complaint):
    assert answer(["fit", "--batch-size", "max", *words]) == 2
    assert complaint in capsys.readouterr().err
