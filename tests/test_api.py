"""gcprof from Python."""

import inspect
import textwrap

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import gcprof
import profiler
from profiler.core import gpu_specs
from profiler.core.errors import UserError
from tests import examples as stored
from tests.chain_models import Counted


def factory():
    """What a user has: a module, a batch and a loss."""
    return nn.Sequential(*[Counted() for _ in range(6)]), (torch.ones(4, 3), torch.zeros(4, 3)), nn.functional.mse_loss


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in profiler.__all__ if name not in ("__version__", "fit")])  # test_live
def test_the_example_of_every_function_runs(name, here):
    stored.run(here / "results" / "first", stored.troubled())
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
