"""A model ready to train: its workload and blocks; tables of models, strategies, optimizers, levers, distribution.

A table maps a name to a function by its place, so that it imports no torch; keyword-only parameters are the options.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from profiler.core import catalogue
from profiler.core.case import Case, Choice
from profiler.core.errors import UserError, nearest_or_all
from profiler.core.units import LEVERS as LEVERS

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
DISTRIBUTED = {"ddp": "profiler.training.distributed:ddp", "fsdp2": "profiler.training.distributed:fsdp2"}
OF_OPTIMIZER = {  # by lever: the options that it sets
    "fused": ("fused", "foreach"),
    "no-foreach": ("fused", "foreach"),
    "8bit": ("fused", "foreach", "its state"),
    "bf16-state": ("its state",),
}
NOT_IN_SCRIPTS = {  # why a script can have it by its own options alone
    "micro-batches": "only the script itself can split its batch: a smaller one, with gradients accumulated",
    "8bit": "the script itself chooses its optimizer's state",
    "bf16-state": "the script itself chooses its optimizer's state",
}
LIKE = {"uniform": "segments:k", "first": "first:n"}  # rules of planning, by the strategy that is the same
PRINTED = re.compile(rf"^({'|'.join(LIKE)})\((\d+)\)")


def resolved_label(label: Choice) -> Choice:
    """Return a strategy with its levers in canonical form: `fused` -> `none+fused`, `uniform(5)` -> `segments:k=5`.

    Raises UserError.
    """
    label = Choice(PRINTED.sub(lambda match: f"{LIKE[match[1]]}={match[2]}", label))
    strategy, *levers = label.parts if label.parts[0].name not in LEVERS else (Choice("none"), *label.parts)
    if "+" in strategy.name:
        name, _, unknown = strategy.name.partition("+")
        hint = nearest_or_all(unknown, LEVERS, before=f"{name}+")
        raise UserError(f"'{label}': no lever is called '{unknown}'", hint=hint)
    chosen = {lever.name: catalogue.resolve(lever, LEVERS, what="lever") for lever in levers}
    if len(chosen) < len(levers):
        raise UserError(f"'{label}' names a lever twice", hint="name each once")
    in_order = [chosen[name] for name in LEVERS if name in chosen]
    return Choice("+".join([catalogue.resolve(strategy, STRATEGIES, what="strategy"), *in_order]))


def label_of(strategy: str, chosen: Iterable[Choice]) -> Choice:
    """Return a strategy with these levers as a label: all, (fused,) -> `all+fused`."""
    return resolved_label(Choice("+".join([strategy, *chosen])))


def refuse_conflicts(case: Case) -> None:
    """Raise UserError for a lever that sets what the case's own optimizer or another lever sets."""
    taken = dict.fromkeys(case.optimizer.options, f"--optimizer {case.optimizer}")
    for lever in case.levers or ():
        for option in OF_OPTIMIZER.get(lever.name, ()):
            if option in taken:
                what = f"{lever.name} and {taken[option]} both choose the optimizer's kernels or state"
                raise UserError(f"'{case.label}': {what}", hint="name one of them")
        taken |= dict.fromkeys(OF_OPTIMIZER.get(lever.name, ()), lever.name)
    if {"in-backward", "micro-batches"} <= {lever.name for lever in case.levers or ()}:
        what = "in-backward would step once for each of the micro-batches"
        raise UserError(f"'{case.label}': {what}", hint="name one of them")


def refuse_in_scripts(label: Choice) -> None:
    """Raise UserError for levers that a script cannot be given, or not together."""
    strategy, *chosen = label.parts
    for lever in chosen:
        if lever.name in NOT_IN_SCRIPTS:
            raise UserError(f"'{label}': {NOT_IN_SCRIPTS[lever.name]}", hint="an option of the command may do it")
    own = Case(model=Choice("own"), strategy=strategy, optimizer=Choice("own"), batch_size=None, device="cuda")
    refuse_conflicts(own.under(label))


def refuse_unknown_optimizer(choice: Choice) -> None:
    """Raises UserError for `torch:NAME` with a name that torch.optim does not have; nothing is imported."""
    family, _, name = choice.name.partition(":")
    known = [word for word in catalogue.classes("torch.optim") if word != "Optimizer"] if family == "torch" else [name]
    if name not in known:
        raise UserError(f"torch.optim has no optimizer '{name}'", hint=nearest_or_all(name, known, before="torch:"))
