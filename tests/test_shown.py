"""gcprof from Python: its functions, what it shows of itself in a notebook, stored runs, and live modules as models."""

import copy
import html
import inspect
import json
import re
import subprocess
import sys
import textwrap

import pandas as pd
import pytest
import torch
from msgspec.structs import replace
from torch import nn

import gcprof
import profiler
from profiler.analysis.rows import COLUMNS, flat_row
from profiler.core import gpu_specs, plan_file
from profiler.core.case import encode_indented
from profiler.core.errors import UserError
from tests import examples, live_models
from tests import make as by_hand
from tests.chain_models import Counted
from tests.program import environment

HOSTILE = "<script>alert(1)</script>&\"'"


def chain(width: int = 64, layers: int = 12) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    module = nn.Sequential(
        *(nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, width)) for _ in range(layers))
    )
    return module, (torch.randn(2048, width), torch.zeros(2048, width))


@pytest.mark.slow
@pytest.mark.parametrize("make", [live_models.make, lambda: (*chain(), nn.functional.mse_loss)])
@pytest.mark.parametrize("device", ["cpu", "h100"])
def test_a_live_module_is_predicted_as_its_factory_is(make, device):
    module, batch, *loss = make()

    live = profiler.predict(module, batch=batch, loss=loss[0] if loss else None, device=device, optimizer="adamw")
    made = profiler.predict(make, device=device, optimizer="adamw")

    assert live.readings == made.readings
    assert live.built == made.built
    assert live.case.model == type(module).__name__


@pytest.mark.parametrize("call", [gcprof.explain, gcprof.predict, gcprof.measure])
def test_a_live_optimizer_is_taken_as_it_is_and_the_result_prints_as_the_screen(call, capsys):
    module, batch = chain(layers=4)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.25)
    before = copy.deepcopy(module.state_dict())

    found = call(module, batch, "all", loss=nn.functional.mse_loss, optimizer=optimizer, device="cpu")

    state = 2 * sum(parameter.nbytes for parameter in module.parameters())
    if call is gcprof.explain:
        held = {share.name: share.nbytes for share in found.explanation.categories}
        assert "| saved activations |" in found._repr_markdown_()
        assert re.search(r"<td[^>]*>saved activations<", found._repr_html_())
    else:
        held = found.readings.static_bytes
    assert 0 <= held["optimizer"] - state < 4 * 1024  # and a count of steps for each parameter
    assert str(found).startswith("Sequential, ")
    assert ("AdamW" if call is gcprof.explain else "its own optimizer") in str(found).splitlines()[0]
    assert "all" in str(found)
    assert not optimizer.state
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.slow
def test_a_plan_shows_itself_beside_what_one_would_pick_and_is_a_recipe_in_its_file(here):
    module, batch = chain()
    plan = profiler.plan(module, budget="70%", batch=batch, loss=nn.functional.mse_loss, device="h100")

    page = plan._repr_html_()
    plan.save("plan.json")

    assert "<img" in page
    assert "predicted, not measured" in page
    assert {"none", "plan", "all"} <= set(re.findall(r"<td[^>]*>([^<]*)", page))
    assert "| plan |" in plan._repr_markdown_()
    assert encode_indented(plan_file.read(here / "plan.json")) == encode_indented(plan)
    assert set(json.loads((here / "plan.json").read_text())) == {"schema", "plan", "segments", "fingerprint"}


def test_the_frame_holds_every_number_of_every_row_in_base_units(here):
    examples.run(here / "results" / "first", examples.troubled())
    run = profiler.load("first")

    frame = run.to_pandas()

    assert list(frame.columns) == list(COLUMNS)
    for (_, found), row in zip(frame.iterrows(), run.rows(), strict=True):
        values = {name: value if isinstance(value, tuple) or pd.notna(value) else None for name, value in found.items()}
        assert values == flat_row(row)
    for word in ("last", "results/first", run.folder):
        assert profiler.load(word).records == run.records


@pytest.mark.slow
def test_a_notebook_shows_every_row_with_its_reason_in_a_page_that_runs_nothing_where_there_is_no_torch(here):
    records = [*examples.troubled(), by_hand.record(HOSTILE), by_hand.failed("all", "failed", HOSTILE)]
    folder = examples.run(here / "results" / "first", records).folder
    code = "import sys; sys.modules['torch'] = None; import profiler; print(profiler.load(sys.argv[1])._repr_html_())"

    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, env=environment())

    assert "segments:k=3: out of memory: tried to allocate 96 MiB in the backward" in done.stdout, done.stderr
    assert "10 rows, complete" in done.stdout
    assert html.escape(HOSTILE) in done.stdout
    assert set(re.findall(r"<(\w+)", done.stdout)) <= {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td"}
    assert set(re.findall(r"<\w+ (\w+)=", done.stdout)) == {"style"}


def factory():
    """What a user has: a module, a batch and a loss."""
    return nn.Sequential(*[Counted() for _ in range(6)]), (torch.ones(4, 3), torch.zeros(4, 3)), nn.functional.mse_loss


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in profiler.__all__ if name not in ("__version__", "fit")])  # test_live
def test_the_example_of_every_function_runs(name, here):
    examples.run(here / "results" / "first", examples.troubled())
    _, _, example = inspect.getdoc(getattr(profiler, name)).partition("Example::\n")
    text = textwrap.dedent(example)

    assert f"gcprof.{name}(" in text
    exec(text, {"nn": nn, "torch": torch, "gcprof": gcprof})


def test_a_prediction_says_which_gpus_hold_it():
    """Adam's four times the weights: 4 * 4 * width * width * layers bytes, and 600 MiB of CUDA's own."""
    width, layers = 16384, 4  # 16 GiB

    def build():
        parts = (part for _ in range(layers) for part in (nn.Linear(width, width), nn.Tanh()))
        return nn.Sequential(*parts), (torch.randn(1, width), torch.zeros(1, width)), nn.functional.mse_loss

    record = profiler.predict(build, device="h100", optimizer="adamw")

    assert record.readings.static_bytes["optimizer"] > 2 * 4 * width * width * layers
    assert {gpu: record.fits(gpu) for gpu in ("t4", "a100-80", "h100")} == {"t4": False, "a100-80": True, "h100": True}
    room = gpu_specs.find("t4").memory_bytes - 600 * 2**20
    reserved = [replace(record.readings, reserved_bytes=room + more) for more in (0, 1)]
    assert [replace(record, readings=readings).fits("t4") for readings in reserved] == [True, False]
    environment = replace(record.environment, device_bytes=80 * 2**30)
    lost = replace(record, outcome="out_of_memory", readings=type(record.readings)(), environment=environment)
    assert not lost.fits("t4")  # smaller than the device that it did not fit
    with pytest.raises(UserError, match="has no bytes"):
        lost.fits("b200")


def test_what_is_no_module_or_was_made_before_is_refused_with_what_is_wanted():
    made = factory()

    with pytest.raises(TypeError, match=r"an nn.Module, and was given a function; measure and predict take"):
        profiler.apply(factory, "all")
    with pytest.raises(UserError, match="made before"):
        profiler.predict(lambda: made)
    assert all("forward" not in vars(block) for block in made[0])
