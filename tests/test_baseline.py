"""A baseline that is broken says so: parameters without a gradient, PyTorch's warnings, checkpoints of the model's own.

The truth is a plain loop in PyTorch, without gcprof.
"""

from __future__ import annotations

import msgspec
import pytest
import torch

from profiler.cli import answer
from profiler.core.record import Note
from profiler.training import missing_gradients
from tests import examples, make
from tests.conftest import measured
from tests.user_models import no_gradient, own_checkpoint

PREFIX = f"{own_checkpoint.__file__}:prefix"
LOSSY = f"{no_gradient.__file__}:make"
WARNED = f"{no_gradient.__file__}:warned"


def notes(record, code):
    return [note.text for note in record.notes if note.code == code]


def gradients(module, batch):
    """Those of one plain step from seed 0."""
    torch.manual_seed(0)
    module(batch).backward()
    return {name: parameter.grad for name, parameter in module.named_parameters() if parameter.requires_grad}


@pytest.mark.filterwarnings("default:None of the inputs have requires_grad")
def test_a_reentrant_checkpoint_over_a_frozen_prefix_is_told_by_number_name_and_cause():
    truth = gradients(*own_checkpoint.prefix())
    lost = [name for name, gradient in truth.items() if gradient is None]

    record = measured(PREFIX, "none", passes=("equality",))

    assert (len(lost), len(truth)) == (12, 14)
    assert record.equality.num_without_gradient == 12
    cause = missing_gradients.REENTRANT
    named = f"{', '.join(lost[:3])} and 9 more ({cause})"
    assert notes(record, "GCP045") == [f"12 of 14 trainable parameters get no gradient: {named}"]
    assert ["None of the inputs have requires_grad=True" in text for text in notes(record, "GCP046")] == [True]


def test_each_parameter_without_a_gradient_is_told_with_its_own_cause():
    truth = gradients(*no_gradient.make())
    lost = {name for name, gradient in truth.items() if gradient is None}
    causes = {"detached": missing_gradients.DETACHED, "off": missing_gradients.OFF, "unused": missing_gradients.UNUSED}
    expected = {f"{module}.{kind}": causes[module] for module in causes for kind in ("weight", "bias")}

    record = measured(LOSSY, "none", passes=("equality",))

    assert lost == set(expected)
    assert record.equality.num_without_gradient == 6
    (text,) = notes(record, "GCP045")
    assert text.startswith("6 of 8 trainable parameters get no gradient: ")
    assert all(f"{module}.weight, {module}.bias ({cause})" in text for module, cause in causes.items())


def test_where_every_parameter_has_its_gradient_the_number_is_nothing_and_no_note_is_made():
    for strategy in ("none", "all"):
        record = measured("mlp", strategy, passes=("equality",))

        assert record.equality.num_without_gradient == 0
        assert notes(record, "GCP045") == []


def test_the_report_shows_the_number_and_a_redacted_one_no_name(here):
    lost = "12 of 14 trainable parameters get no gradient"
    note = Note(code="GCP045", text=f"{lost}: secretive.weight (not used in the forward)")
    none = make.record()
    equality = msgspec.structs.replace(none.equality, num_without_gradient=12)
    examples.run(here / "results" / "run", [msgspec.structs.replace(none, equality=equality, notes=(note,))])

    for level, is_named in (("default", True), ("all", False)):
        assert answer(["report", "-o", f"{level}.html", "--redact", level]) == 0
        page = (here / f"{level}.html").read_text()
        assert "12 without gradient" in page
        assert lost in page
        assert ("secretive" in page) == is_named


@pytest.mark.parametrize("strategy", ["none", "all"])
def test_what_pytorch_warns_of_is_a_note_and_is_still_shown(strategy):
    with pytest.warns(UserWarning, match="target size") as given:
        gradients(*no_gradient.warned(batch_size=8))
    (truth,) = {str(one.message).partition("\n")[0] for one in given if one.category is UserWarning}

    with pytest.warns(UserWarning, match="target size") as shown:
        record = measured(WARNED, strategy, passes=("equality",))

    assert "target size" in truth
    assert notes(record, "GCP046") == [f"warned of while the step ran: {truth}"]
    assert truth in {str(one.message).partition("\n")[0] for one in shown}


def test_of_many_warnings_three_are_named_each_once_by_its_first_line():
    with pytest.warns(UserWarning, match="trouble 3"):
        record = measured(f"{WARNED}:count=4", "none", passes=("equality",))

    listed = "trouble 0; trouble 1; trouble 2; and 2 more"  # trouble 3, and the loss's own
    assert notes(record, "GCP046") == [f"warned of while the step ran: {listed}"]


def test_a_step_without_a_warning_has_no_such_note():
    assert notes(measured("mlp", "all", passes=("equality",)), "GCP046") == []
