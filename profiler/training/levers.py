"""The table of levers: what changes a whole step beside its strategy; a function each, as in the table of strategies.

The function takes the Workload and the Case, and returns the changed Workload and what it did as Applied; its
keyword-only parameters are the options. It raises Unsupported where it cannot be applied. Levers are applied after the
strategy, in the order of the table, which is that of labels. Importing the table imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from profiler.core import catalogue
from profiler.core.case import Case, Choice
from profiler.core.errors import UserError, nearest_or_all
from profiler.core.record import Applied
from profiler.core.units import LEVERS
from profiler.training import STRATEGIES

if TYPE_CHECKING:  # has torch
    from profiler.training.workload import Workload

TABLE = {
    "chunk-loss": "profiler.training.chunked_loss:apply",
    "micro-batches": "profiler.training.memory_levers:micro_batches",
    "fused": "profiler.training.optimizers:fused",
    "no-foreach": "profiler.training.optimizers:no_foreach",
    "8bit": "profiler.training.optimizers:eight_bit",
    "bf16-state": "profiler.training.optimizers:bf16_state",
    "in-backward": "profiler.training.optimizers:in_backward",
    "offload-inputs": "profiler.training.memory_levers:inputs",
    "expandable-segments": "profiler.training.memory_levers:expandable_segments",
}
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


def resolved(label: Choice) -> Choice:
    """Return a strategy with its levers in canonical form: `fused` -> `none+fused`, `uniform(5)` -> `segments:k=5`.

    Raises UserError.
    """
    label = Choice(PRINTED.sub(lambda match: f"{LIKE[match[1]]}={match[2]}", label))
    strategy, *levers = label.parts if label.parts[0].name not in TABLE else (Choice("none"), *label.parts)
    if "+" in strategy.name:
        name, _, unknown = strategy.name.partition("+")
        hint = nearest_or_all(unknown, TABLE, before=f"{name}+")
        raise UserError(f"'{label}': no lever is called '{unknown}'", hint=hint)
    chosen = {lever.name: catalogue.resolve(lever, TABLE, what="lever") for lever in levers}
    if len(chosen) < len(levers):
        raise UserError(f"'{label}' names a lever twice", hint="name each once")
    in_order = [chosen[name] for name in LEVERS if name in chosen]
    return Choice("+".join([catalogue.resolve(strategy, STRATEGIES, what="strategy"), *in_order]))


def label(strategy: str, chosen: Iterable[Choice]) -> Choice:
    """Return a strategy with these levers as a label: all, (fused,) -> `all+fused`."""
    return resolved(Choice("+".join([strategy, *chosen])))


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


def with_levers(case: Case, workload: Workload, applied: Applied) -> tuple[Workload, Applied]:
    """Apply the case's levers, after its strategy; what they did is added to what it did."""
    for lever in case.levers or ():
        apply, options = catalogue.load(lever, TABLE)
        workload, own = apply(workload, case, **options)
        applied = msgspec.structs.replace(
            applied,
            split="; ".join(filter(None, (applied.split, own.split))) or None,
            rounds=applied.rounds or own.rounds,
            draws_apart=applied.draws_apart or own.draws_apart,
            heads=own.heads or applied.heads,
            notes=(*applied.notes, *own.notes),
            remark=partial(_first, applied.remark, own.remark),
            switch=partial(_first, applied.switch, own.switch) if applied.switch and own.switch else None,
        )
    return workload, applied


def _first(first: Callable[..., Any], second: Callable[..., Any], *given: bool) -> Any:
    """Return what the first says of notes, or else the second; switches, which return None, are both turned."""
    return first(*given) or second(*given)
