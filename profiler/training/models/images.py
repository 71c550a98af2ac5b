"""What image classifiers share: the batch, the loss, and the check of an image size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from profiler.core.errors import Unsupported
from profiler.training.workload import Workload

OWN_SIZE = "own"


def side(word: str, own: int) -> int:
    """Return the images' side in pixels: the model's own, or as asked. Raises Unsupported if that is no number."""
    if word == OWN_SIZE:
        return own
    if not word.isascii() or not word.isdigit() or not int(word):
        raise Unsupported(f"size={word} is not a number of pixels; size={OWN_SIZE} is the model's own, {own}")
    return int(word)


def fitting(make: Callable[[], nn.Module], name: str, batch_size: int, pixels: int, *, channels: int = 3) -> nn.Module:
    """Return the model. Raises Unsupported if it cannot be built for, or run on, images of this size.

    It is run once on the meta device, which costs neither memory nor time.
    """
    try:
        module = make().train()
        kept = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        shapes = {key: torch.empty_like(tensor, device="meta") for key, tensor in kept.items()}
        functional_call(module, shapes, torch.empty(batch_size, channels, pixels, pixels, device="meta"))
    except (RuntimeError, ValueError, AssertionError, IndexError, ZeroDivisionError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Unsupported(f"{name} does not take {batch_size} images of {pixels} x {pixels}: {reason}") from None
    return module


def classified(
    module: nn.Module, batch_size: int, pixels: int, classes: int, *, channels: int = 3, auxiliary: float = 0.0
) -> Workload:
    """Return a workload of random images and labels with cross entropy; auxiliary outputs add theirs, weighted."""
    images = torch.randn(batch_size, channels, pixels, pixels)
    labels = torch.randint(classes, (batch_size,))  # (batch,)
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
