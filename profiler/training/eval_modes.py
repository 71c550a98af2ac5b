"""Notes what a model's factory left in eval mode although it trains."""

from __future__ import annotations

from torch import nn

MODAL = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)  # layers that act differently in eval mode


def remark(module: nn.Module) -> str | None:
    """Return a sentence on what is in eval mode while parameters train; None if that makes no difference."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return None
    layers = [layer for layer in module.modules() if isinstance(layer, MODAL) and _trains(layer)]
    resting = [layer for layer in layers if not layer.training]
    switched = [layer for layer in module.modules() if getattr(layer, "gradient_checkpointing", False) is True]
    off = (
        "; its own checkpointing is switched on, but has no effect in eval mode"
        if any(not s.training for s in switched)
        else ""
    )
    if not resting and not off:
        return None
    count = f"{len(resting)} of {len(layers)} dropout and BatchNorm layers are" if layers else "the model is"
    return f"{count} in eval mode, as the factory returned them{off}; .train() in the factory changes it"


def _trains(layer: nn.Module) -> bool:
    """Whether a layer has trainable parameters, or no parameters at all."""
    own = list(layer.parameters())
    return not own or any(parameter.requires_grad for parameter in own)
