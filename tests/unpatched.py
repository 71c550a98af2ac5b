"""A model of the tables without gcprof's passes."""

import torch

from profiler.core import catalogue
from profiler.core.case import Choice
from profiler.training import models


def plain(model: str, batch_size: int, change=lambda module: None):
    """Builds the model without gcprof's passes; `change` may alter it."""

    def build():
        function, options = catalogue.load(Choice(model), models.TABLE)
        torch.manual_seed(0)
        workload = function(batch_size=batch_size, **options)
        change(workload.module)
        return workload.module, workload.batch, workload.loss

    return build
