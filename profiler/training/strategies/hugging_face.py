"""Strategy `hf`: a Hugging Face model's own checkpointing switch, of transformers or diffusers."""

from __future__ import annotations

from typing import Any

from profiler.core.errors import Unsupported
from profiler.core.record import Applied
from profiler.training.workload import Workload


def apply(workload: Workload) -> Applied:
    """Calls the model's own activation_checkpointing_enable(), or enable_gradient_checkpointing() of diffusers.

    Before transformers 5.23 it is gradient_checkpointing_enable(). Raises Unsupported where the model has none of
    these, or where it does not support it.
    """
    module: Any = workload.module
    named = [word for word in ("activation", "gradient") if hasattr(module, f"{word}_checkpointing_enable")]
    if not named and not hasattr(module, "enable_gradient_checkpointing"):
        raise Unsupported(
            "the model has no activation_checkpointing_enable(), as a Hugging Face model has; where your code switches "
            "its checkpoints on, `own` measures them"
        )

    def switch(on: bool) -> None:
        if not named:
            (module.enable_gradient_checkpointing if on else module.disable_gradient_checkpointing)()
        elif on:
            getattr(module, f"{named[0]}_checkpointing_enable")({"use_reentrant": False})
        else:
            getattr(module, f"{named[0]}_checkpointing_disable")()

    try:
        switch(True)
    except ValueError as error:  # "... does not support gradient checkpointing"
        raise Unsupported(str(error).splitlines()[0]) from error
    enabled = [submodule for submodule in module.modules() if getattr(submodule, "gradient_checkpointing", False)]
    if not enabled:
        raise Unsupported("its switch for gradient checkpointing reached no layer of this model")
    return Applied(split=f"{len(enabled)} switched on", keeps_own=True, switch=switch)
