"""A Hugging Face model's own switch."""

from __future__ import annotations

from typing import Any

from profiler.core.errors import Unsupported
from profiler.core.record import Applied
from profiler.training.workload import Workload


def apply(workload: Workload) -> Applied:
    """Calls the model's own gradient_checkpointing_enable().

    Raises Unsupported where it has none, or where it does not support it.
    """
    module: Any = workload.module
    if not hasattr(module, "gradient_checkpointing_enable"):
        raise Unsupported("the model has no gradient_checkpointing_enable(); it is not a Hugging Face model")

    def switch(on: bool) -> None:
        if on:
            module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            module.gradient_checkpointing_disable()

    try:
        switch(True)
    except ValueError as error:  # "... does not support gradient checkpointing"
        raise Unsupported(str(error).splitlines()[0]) from error
    enabled = [submodule for submodule in module.modules() if getattr(submodule, "gradient_checkpointing", False)]
    if not enabled:
        raise Unsupported("gradient_checkpointing_enable() reached no layer of this model")
    return Applied(split=f"{len(enabled)} switched on", keeps_own=True, switch=switch)
