"""The table of optimizers, which imports no torch; their keyword-only parameters are the options."""

from __future__ import annotations

from profiler.core import catalogue
from profiler.core.case import Choice
from profiler.core.errors import UserError, nearest_or_all

TABLE = {
    "sgd": "profiler.training.optimizers.torch_optim:sgd",
    "momentum": "profiler.training.optimizers.torch_optim:momentum",
    "adam": "profiler.training.optimizers.torch_optim:adam",
    "adamw": "profiler.training.optimizers.torch_optim:adamw",
    "torch": "profiler.training.optimizers.torch_optim:build",
}
FAMILY, BASE = "torch", "Optimizer"


def refuse_unknown(choice: Choice) -> None:
    """Raises UserError for `torch:NAME` with a name that torch.optim does not have; nothing is imported."""
    family, _, name = choice.name.partition(":")
    known = [word for word in catalogue.classes("torch.optim") if word != BASE] if family == FAMILY else [name]
    if name not in known:
        raise UserError(f"torch.optim has no optimizer '{name}'", hint=nearest_or_all(name, known, before="torch:"))
