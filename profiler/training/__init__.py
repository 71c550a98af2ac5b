"""A model ready to train: its workload and blocks, and the tables of models, strategies, optimizers, distribution.

A table maps a name to a function by its place, so that it imports no torch; keyword-only parameters are the options.
"""

from __future__ import annotations

from profiler.core import catalogue
from profiler.core.case import Choice
from profiler.core.errors import UserError, nearest_or_all

# The function takes the Workload, changes its module in place, and returns what it did as Applied. It raises
# Unsupported where it cannot be applied.
STRATEGIES = {
    "none": "profiler.training.strategies:none",
    "segments": "profiler.training.strategies:segments",
    "sqrt": "profiler.training.strategies:sqrt",
    "all": "profiler.training.strategies:all_blocks",
    "every": "profiler.training.strategies:every",
    "first": "profiler.training.strategies:first",
    "recursive": "profiler.training.strategies:recursive",
    "from-start": "profiler.training.strategies:from_start",
    "selective": "profiler.training.strategies:selective",
    "offload": "profiler.training.strategies:offload",
    "own": "profiler.training.strategies:own",
    "hf": "profiler.training.strategies:hugging_face",
    "plan": "profiler.training.strategies:plan",
    "compile-budget": "profiler.training.strategies:compile_budget",
    "_planted": "profiler.training.strategies:planted",
}
OPTIMIZERS = {
    "sgd": "profiler.training.optimizers:sgd",
    "momentum": "profiler.training.optimizers:momentum",
    "adam": "profiler.training.optimizers:adam",
    "adamw": "profiler.training.optimizers:adamw",
    "torch": "profiler.training.optimizers:build",
}
# The function takes the Workload of one rank, its strategy applied, and the mesh of all ranks (`torch.distributed`'s
# one-dimensional DeviceMesh). It returns the Workload to train, whose module, blocks and parameters keep their names,
# and raises Unsupported if it cannot be applied.
DISTRIBUTED = {
    "ddp": "profiler.training.distributed:ddp",
    "fsdp2": "profiler.training.distributed:fsdp2",
}


def refuse_unknown_optimizer(choice: Choice) -> None:
    """Raises UserError for `torch:NAME` with a name that torch.optim does not have; nothing is imported."""
    family, _, name = choice.name.partition(":")
    known = [word for word in catalogue.classes("torch.optim") if word != "Optimizer"] if family == "torch" else [name]
    if name not in known:
        raise UserError(f"torch.optim has no optimizer '{name}'", hint=nearest_or_all(name, known, before="torch:"))
