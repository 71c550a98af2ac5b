"""Every classification model of torchvision, and every model of timm, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torchvision import models

from profiler.core.catalogue import Count
from profiler.core.errors import Unsupported, similar
from profiler.training.workload import Workload

SIZES = {"inception_v3": 299}  # the others were made for 224
AUXILIARY = {"googlenet": 0.3, "inception_v3": 0.4}  # the weight of each auxiliary loss in the original training
OWN_SIZE = "own"


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

    particular: dict[str, Any] = {"image_size": pixels} if name.startswith("vit_") else {}
    if name in AUXILIARY:
        particular = {"init_weights": False}  # True takes seconds, and leaving it out warns
    if name.startswith("maxvit"):
        particular = {"input_size": (pixels, pixels)}
    shape = (batch_size, 3, pixels, pixels)
    make: Any = partial(models.get_model, name, weights=None, num_classes=classes, **particular)
    module = make() if pixels == own else _fitting(make, name, shape)
    return _classified(module, shape, classes, auxiliary=AUXILIARY.get(name, 0.0))


def timm(name: str, batch_size: int = 16, *, size: str = "own", classes: Count = 1000) -> Workload:
    """Any model of timm by its name, random weights, nothing downloaded; `size` is the images' side in pixels.

    Models of a fixed size are built for the size that is asked for. Raises Unsupported for a name that timm does not
    have, and for a size that the model does not take.
    """
    try:
        import timm as library  # noqa: PLC0415  it takes a second, and may not be installed
        from timm.models import PretrainedCfg  # noqa: PLC0415
    except ImportError:
        raise Unsupported("timm is not installed: pip install timm") from None
    if not library.is_model(name):
        near = similar(name, library.list_models())
        raise Unsupported(f"timm has no model '{name}'" + (f"; the nearest is '{near[0]}'" if near else ""))
    settings = library.get_pretrained_cfg(name, allow_unregistered=True) or PretrainedCfg()
    channels, own, _ = settings.input_size
    pixels = side(size, own)
    extra: dict[str, Any] = {"img_size": pixels} if settings.fixed_input_size and pixels != own else {}

    shape = (batch_size, channels, pixels, pixels)
    make: Any = partial(library.create_model, name, pretrained=False, num_classes=classes, **extra)
    return _classified(make() if pixels == own else _fitting(make, name, shape), shape, classes)


def side(word: str, own: int) -> int:
    """Return the images' side in pixels: the model's own, or as asked. Raises Unsupported if that is no number."""
    if word == OWN_SIZE:
        return own
    if not word.isascii() or not word.isdigit() or not int(word):
        raise Unsupported(f"size={word} is not a number of pixels; size={OWN_SIZE} is the model's own, {own}")
    return int(word)


def _fitting(make: Callable[[], nn.Module], name: str, shape: tuple[int, ...]) -> nn.Module:
    """Return the model. Raises Unsupported if it cannot be built for, or run on, images of this shape.

    It is run once on the meta device, which costs neither memory nor time.
    """
    try:
        module = make().train()
        kept = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        shapes = {key: torch.empty_like(tensor, device="meta") for key, tensor in kept.items()}
        functional_call(module, shapes, torch.empty(shape, device="meta"))
    except (RuntimeError, ValueError, AssertionError, IndexError, ZeroDivisionError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Unsupported(f"{name} does not take {shape[0]} images of {shape[2]} x {shape[3]}: {reason}") from None
    return module


def _classified(module: nn.Module, shape: tuple[int, ...], classes: int, *, auxiliary: float = 0.0) -> Workload:
    """Return a workload of random images and labels with cross entropy; auxiliary outputs add theirs, weighted."""
    images = torch.randn(shape)  # (batch, channels, height, width)
    labels = torch.randint(classes, shape[:1])  # (batch,)
    return Workload(module=module, batch=(images, labels), loss=partial(_loss, auxiliary))


def _loss(auxiliary: float, module: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    images, labels = batch
    output: Any = module(images)
    if isinstance(output, torch.Tensor):
        return F.cross_entropy(output, labels)
    main, *others = (logits for logits in output if logits is not None)
    loss = F.cross_entropy(main, labels)
    for logits in others:
        loss = loss + auxiliary * F.cross_entropy(logits, labels)
    return loss
