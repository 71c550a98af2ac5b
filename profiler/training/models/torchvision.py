"""Every classification model of torchvision, with random weights."""

from __future__ import annotations

from typing import Any

from torch import nn
from torchvision import models

from profiler.core.catalogue import Count
from profiler.core.errors import Unsupported, similar
from profiler.training.models.images import classified, fitting, side
from profiler.training.workload import Workload

SIZES = {"inception_v3": 299}  # the others were made for 224
AUXILIARY = {"googlenet": 0.3, "inception_v3": 0.4}  # the weight of each auxiliary loss in the original training


def build(name: str, batch_size: int = 16, *, size: str = "own", classes: Count = 1000) -> Workload:
    """Any classification model of torchvision by its name, random weights; `size` is the images' side in pixels.

    GoogLeNet and Inception add their auxiliary losses, weighted 0.3 and 0.4. Vision transformers and MaxViT are built
    for the size that is asked for. Raises Unsupported for a name that torchvision does not have, and for a size that
    the model does not take.
    """
    names = models.list_models(module=models)
    if name not in names:
        near = similar(name, names)
        raise Unsupported(
            f"torchvision has no classification model '{name}'"
            + (f"; the nearest is '{near[0]}'" if near else f"; it has {', '.join(names)}")
        )
    own = SIZES.get(name, 224)
    pixels = side(size, own)

    def make() -> nn.Module:
        module: nn.Module = models.get_model(name, weights=None, num_classes=classes, **_particular(name, pixels))
        return module

    module = make() if pixels == own else fitting(make, name, batch_size, pixels)
    return classified(module, batch_size, pixels, classes, auxiliary=AUXILIARY.get(name, 0.0))


def _particular(name: str, pixels: int) -> dict[str, Any]:
    """Return extra arguments that some constructors need."""
    if name in AUXILIARY:
        return {"init_weights": False}  # True takes seconds, and leaving it out warns
    if name.startswith("vit_"):
        return {"image_size": pixels}
    return {"input_size": (pixels, pixels)} if name.startswith("maxvit") else {}
