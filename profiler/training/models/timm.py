"""Every model of timm, with random weights."""

from __future__ import annotations

from typing import Any

from torch import nn

from profiler.core.catalogue import Count
from profiler.core.errors import Unsupported, similar
from profiler.training.models.torchvision import classified, fitting, side
from profiler.training.workload import Workload

try:
    import timm
    from timm.models import PretrainedCfg
except ImportError:
    raise Unsupported("timm is not installed: pip install timm") from None


def build(name: str, batch_size: int = 16, *, size: str = "own", classes: Count = 1000) -> Workload:
    """Any model of timm by its name, random weights, nothing downloaded; `size` is the images' side in pixels.

    Models of a fixed size are built for the size that is asked for. Raises Unsupported for a name that timm does not
    have, and for a size that the model does not take.
    """
    if not timm.is_model(name):
        near = similar(name, timm.list_models())
        raise Unsupported(f"timm has no model '{name}'" + (f"; the nearest is '{near[0]}'" if near else ""))
    settings = timm.get_pretrained_cfg(name, allow_unregistered=True) or PretrainedCfg()
    channels, own, _ = settings.input_size
    pixels = side(size, own)
    extra: dict[str, Any] = {"img_size": pixels} if settings.fixed_input_size and pixels != own else {}

    def make() -> nn.Module:
        module: nn.Module = timm.create_model(name, pretrained=False, num_classes=classes, **extra)
        return module

    module = make() if pixels == own else fitting(make, name, batch_size, pixels, channels=channels)
    return classified(module, batch_size, pixels, classes, channels=channels)
