"""Samples of common operators on tensors as large as activations are, which PyTorch's own are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.operators_common import ACTIVATIONS, ALONG, ONE_DIMENSION, REDUCING, UNARY

SHAPES = (64, 1024), (8, 64, 56, 56), (16, 197, 384)
Sample = tuple[str, Callable[..., Any], tuple[Any, ...]]  # an operator, how it is called, and what it is given


def larger(names: list[str], dtype: torch.dtype) -> Iterator[Sample]:
    """Samples of common operators on tensors as large as activations are, of those names or of all."""
    for name, function, shapes in _table():
        if not names or name in names:
            yield name, function, tuple(_tensor(one, dtype) for one in shapes)


def _tensor(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """An integer is how many indices below 10; the rest has a gradient."""
    if isinstance(shape, int):
        return torch.arange(shape) % 10
    return torch.rand(shape, dtype=dtype).requires_grad_()


def _table() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    for shape in SHAPES:
        yield from _elementwise(shape)
        yield from _reducing(shape)
    yield from _products()
    yield from _moving()
    yield from _layers()
    yield from _losses()


def _elementwise(shape: tuple[int, ...]) -> Iterator[Any]:
    for name in UNARY:
        if name != "contiguous":
            yield name, getattr(torch, name), (shape,)
    for name in ACTIVATIONS:
        yield f"nn.functional.{name}", _functional(name), (shape,)
    for name in ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "atan2"):
        yield name, getattr(torch, name), (shape, shape)
        yield name, getattr(torch, name), (shape, shape[-1:])
        yield name, getattr(torch, name), ((shape[0], *[1] * (len(shape) - 1)), shape)
    yield "where", lambda one, other: torch.where(one > 0, one, other), (shape, shape[-1:])
    yield "masked_fill", lambda one: one.masked_fill(one > 0, 0), (shape,)
    yield "clamp", lambda one: one.clamp(0, 1), (shape,)
    yield "contiguous", lambda one: one.transpose(0, 1).contiguous(), (shape,)
    yield "float", lambda one: one.float(), (shape,)
    yield "bfloat16", lambda one: one.bfloat16(), (shape,)
    yield "addcmul", torch.addcmul, (shape, shape, shape[-1:])
    yield "lerp", torch.lerp, (shape, shape, shape[-1:])
    yield "nn.functional.dropout", lambda one: F.dropout(one, 0.1), (shape,)


def _functional(name: str) -> Callable[..., Any]:
    return lambda *given: getattr(F, name)(*given)  # what is patched is found


def _reducing(shape: tuple[int, ...]) -> Iterator[Any]:
    for name in REDUCING:
        function = getattr(torch, name)
        if name not in ("logsumexp",):
            yield name, function, (shape,)
        for dim in (0, -1, *([] if name in ONE_DIMENSION else [(0, *range(2, len(shape)))])):
            yield name, lambda one, function=function, dim=dim: function(one, dim=dim), (shape,)
    for name in ALONG:
        for dim in (0, -1):
            call = getattr(torch, name) if name != "flip" else lambda one, dim: one.flip([dim])
            yield name, lambda one, call=call, dim=dim: call(one, dim=dim), (shape,)
    for name in ("max", "min"):
        function = getattr(torch, name)
        yield f"{name}.reduction_no_dim", function, (shape,)
        for dim in (0, -1):
            yield f"{name}.reduction_with_dim", lambda one, f=function, dim=dim: f(one, dim=dim), (shape,)
    for order in (1, 2, float("inf")):
        yield "linalg.vector_norm", lambda one, order=order: torch.linalg.vector_norm(one, order), (shape,)
        yield "nn.functional.normalize", lambda one, order=order: F.normalize(one, order), (shape,)


def _products() -> Iterator[Any]:
    many, wide, batch = (512, 1024), (1024, 768), (16, 197, 384)
    yield "matmul", torch.matmul, (many, wide)
    yield "mm", torch.mm, (many, wide)
    yield "matmul", torch.matmul, (batch, (384, 512))
    yield "matmul", torch.matmul, ((8, 4, 128, 64), (8, 4, 64, 128))
    yield "bmm", torch.bmm, (batch, (16, 384, 64))
    yield "addmm", torch.addmm, ((768,), many, wide)
    yield "baddbmm", torch.baddbmm, ((16, 197, 64), batch, (16, 384, 64))
    yield "einsum", lambda one, other: torch.einsum("bij,bkj->bik", one, other), (batch, batch)
    yield "outer", torch.outer, ((1024,), (768,))
    yield "mv", torch.mv, (many, (1024,))
    for shape in (many, batch, (4, 8, 32, 64)):
        for bias in ((), ((768,),)):
            yield "nn.functional.linear", _functional("linear"), (shape, (768, shape[-1]), *bias)


def _moving() -> Iterator[Any]:
    rows, images = (512, 1024), (8, 64, 56, 56)
    for shape in (rows, images):
        for dim in (0, 1):
            yield "cat", lambda *given, dim=dim: torch.cat(given, dim), (shape, shape)
            yield "stack", lambda *given, dim=dim: torch.stack(given, dim), (shape, shape)
            yield "chunk", lambda one, dim=dim: one.chunk(2, dim), (shape,)
            yield "index_select", lambda one, at, dim=dim: one.index_select(dim, at), (shape, 64)
        yield "roll", lambda one: one.roll((3, 3), (0, 1)), (shape,)
        yield "repeat_interleave", lambda one: one.repeat_interleave(2, 1), (shape,)
        yield "tril", lambda one: one.tril(), (shape,)
        yield "__getitem__", lambda one, at: one[at], (shape, 256)
        yield "__getitem__", lambda one, at: one[:, at], (shape, 64)
        yield "__getitem__", lambda one: one[:, 1:], (shape,)
        yield "nn.functional.pad.constant", lambda one: F.pad(one, (1, 1)), (shape,)
    for name in ("gather", "scatter", "scatter_add", "index_add", "index_put", "topk"):
        yield name, _indexing(name), (rows, 512, rows)
    yield "nn.functional.embedding", lambda table, at: F.embedding(at, table), ((1000, 768), 2048)
    yield "nn.functional.embedding", lambda table, at: F.embedding(at, table), ((1000, 768), 8192)
    yield "nn.functional.one_hot", lambda at, one: F.one_hot(at, 10) * one, (8192, (10,))


def _indexing(name: str) -> Callable[..., Any]:
    def call(one: torch.Tensor, at: torch.Tensor, other: torch.Tensor) -> Any:
        wide = at[:, None].expand(512, 1024)
        calls: dict[str, Callable[[], Any]] = {
            "gather": lambda: one.gather(0, wide),
            "scatter": lambda: one.scatter(0, wide, other),
            "scatter_add": lambda: one.scatter_add(0, wide, other),
            "index_add": lambda: one.index_add(0, at, other),
            "index_put": lambda: one.index_put((at,), other),
            "topk": lambda: one.topk(5),
        }
        return calls[name]()

    return call


def _layers() -> Iterator[Any]:
    images, tokens = (8, 64, 56, 56), (16, 197, 384)
    of = {
        "max_pool2d": (3, 2, 1),
        "avg_pool2d": (3, 2),
        "adaptive_avg_pool2d": (1,),
        "adaptive_max_pool2d": (7,),
        "group_norm": (32,),
        "instance_norm": (),
        "unfold": (3,),
        "glu": (1,),
        "pixel_shuffle": (2,),
        "pixel_unshuffle": (2,),
        "channel_shuffle": (2,),
        "local_response_norm": (5,),
        "dropout2d": (),
    }
    for name, options in of.items():
        yield f"nn.functional.{name}", lambda one, n=name, o=options: getattr(F, n)(one, *o), (images,)
    for mode in ("nearest", "bilinear", "bicubic", "area"):
        yield f"nn.functional.interpolate.{mode}", lambda one, m=mode: F.interpolate(one, (28, 28), mode=m), (images,)
    for mode in ("reflect", "replicate"):
        yield f"nn.functional.pad.{mode}", lambda one, m=mode: F.pad(one, (3, 3, 3, 3), mode=m), (images,)
    yield "nn.functional.batch_norm", _batch_norm, (images, (64,), (64,))
    yield "nn.functional.group_norm", lambda one, w, b: F.group_norm(one, 32, w, b), (images, (64,), (64,))
    yield "nn.functional.prelu", F.prelu, (images, (64,))
    yield "nn.functional.layer_norm", lambda one, w, b: F.layer_norm(one, (384,), w, b), (tokens, (384,), (384,))
    yield "nn.functional.rms_norm", lambda one, w: F.rms_norm(one, (384,), w), (tokens, (384,))
    for kernel, options in ((1, {}), (3, {"padding": 1}), (3, {"stride": 2})):
        call = lambda one, w, b, o=options: F.conv2d(one, w, b, **o)  # noqa: E731
        yield "nn.functional.conv2d", call, (images, (128, 64, kernel, kernel), (128,))
    yield "nn.functional.conv2d", lambda one, w: F.conv2d(one, w, padding=1, groups=64), (images, (64, 1, 3, 3))
    yield (
        "nn.functional.conv_transpose2d",
        lambda one, w: F.conv_transpose2d(one, w, stride=2),
        (images, (64, 32, 2, 2)),
    )
    heads = (4, 6, 197, 64)
    for causal in (False, True):
        yield (
            "nn.functional.scaled_dot_product_attention",
            lambda *given, c=causal: F.scaled_dot_product_attention(*given, is_causal=c),
            (heads, heads, heads),
        )


def _batch_norm(one: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(one, None, None, weight, bias, training=True)


def _losses() -> Iterator[Any]:
    rows = (512, 1024)
    for reduction in ("mean", "sum", "none"):
        for name in (
            "mse_loss",
            "l1_loss",
            "smooth_l1_loss",
            "huber_loss",
            "kl_div",
            "binary_cross_entropy_with_logits",
        ):
            yield f"nn.functional.{name}", _loss(name, reduction), (rows, rows)
        for name in ("cross_entropy", "nll_loss"):
            yield f"nn.functional.{name}", _loss(name, reduction), (rows, 512)
    yield "nn.functional.cross_entropy", lambda one, at: F.cross_entropy(one, at, label_smoothing=0.1), (rows, 512)
    yield (
        "nn.functional.cross_entropy",
        lambda one, at: F.cross_entropy(one, at.view(8, 4096) % 10),
        ((8, 64, 4096), 32768),
    )
    yield "nn.functional.cosine_similarity", F.cosine_similarity, (rows, rows)


def _loss(name: str, reduction: str) -> Callable[..., Any]:
    return lambda one, other: getattr(F, name)(one, other.detach(), reduction=reduction)
