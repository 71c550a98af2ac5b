"""What is saved for gradients that reach no parameter, held to the same step without what asks for them."""

import pytest
import torch
from torch import nn

from profiler.core.case import Choice
from profiler.measuring.meters.saved_graph import frozen_modules, needless_bytes
from profiler.training.models.user import as_workload
from tests.conftest import measured
from tests.user_models import gradients

FILE = gradients.__file__
NEEDLESS = (1 + gradients.DEPTH) * gradients.BATCH * gradients.WIDTH * 4  # the input, and those of each GELU


def needless(*made):
    workload = as_workload(made)
    return needless_bytes(workload.loss(workload.module, workload.batch), workload)


@pytest.mark.slow
def test_it_is_what_the_same_step_saves_less_without_the_hook():
    on, off = (
        measured(Choice.of(f"{FILE}:tower", {"hook": hook}), "none", batch_size=None, passes=("flops", "memory"))
        for hook in ("on", "off")
    )

    assert on.readings.saved_bytes - off.readings.saved_bytes == NEEDLESS
    texts = [[note.text for note in record.notes if note.code == "GCP055"] for record in (on, off)]
    assert [len(of_record) for of_record in texts] == [1, 0]
    assert "32.0 KiB are saved for gradients that reach no parameter: nothing trains in tower, and" in texts[0][0]


def test_what_trains_before_a_frozen_tower_needs_it_and_so_may_the_user_who_reads_the_batchs_gradient():
    net, batch, loss = gradients.tower("off")
    trained, *inputs = gradients.tower()
    trained.embed.requires_grad_(True)

    wanted = batch.detach().requires_grad_()
    assert needless(net, wanted, loss) == needless(net, batch, loss) == needless(trained, *inputs) == 0
    assert frozen_modules(as_workload((trained, *inputs))) == []


def test_what_others_save_too_is_not_counted():
    """The product's weight has a gradient, for which it saves the frozen layer's result; GELU saves it besides."""

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen, self.layer = nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 8)

        def forward(self, x):
            x = self.frozen(x.clone().requires_grad_())
            return (nn.functional.gelu(x) + self.layer(x)).mean()

    nbytes = needless(Shared(), torch.randn(16, 8))

    assert nbytes == 16 * 8 * 4  # the clone that needs a gradient; not the layer's result
