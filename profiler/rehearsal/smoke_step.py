"""A small training step on the hollow device: what each of its phases should hold, by arithmetic, and what it holds.

Runs in a process of its own, which has loaded the libraries before torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.nn import functional

GRANULE = 512  # bytes: what the CUDA caching allocator rounds every request up to
MIB = 1 << 20
SMALL_SEGMENT, LARGE_SEGMENT = 2 * MIB, 20 * MIB  # what it takes from CUDA for requests up to 1 MiB, up to 10 MiB
FLOAT, INTEGER = 4, 8  # bytes of an element
BATCH, CHANNELS, SIDE, PATCH = 8, 3, 32, 4
WIDTH, HEADS, CLASSES = 64, 4, 10
TOKENS = (SIDE // PATCH) ** 2
CUBLAS_WORKSPACE = 8 * (16 << 10)  # bytes, as smoke.py asks for them

Check = tuple[str, int, int]  # the phase, and its bytes: as expected, as they are

PARAMETERS = (  # numbers of elements
    WIDTH * CHANNELS * PATCH**2, WIDTH,  # convolution
    WIDTH, WIDTH,  # layer norm
    3 * WIDTH * WIDTH, 3 * WIDTH,  # queries, keys, values
    WIDTH * WIDTH, WIDTH,  # projection
    CLASSES * WIDTH, CLASSES,  # head
)  # fmt: skip


class Step(nn.Module):
    """A transformer's layer on patches of images; tells after each of its parts what is allocated."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(CHANNELS, WIDTH, PATCH, stride=PATCH)
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.allocated: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits: (batch, classes)."""
        x = self.patches(images).flatten(2).transpose(1, 2).contiguous()  # (batch, token, width)
        self._tell()
        x = self.norm(x)
        self._tell()
        x = self.qkv(x).view(BATCH, TOKENS, 3, HEADS, WIDTH // HEADS)
        self._tell()
        q, k, v = x.permute(2, 0, 3, 1, 4).reshape(3, BATCH * HEADS, TOKENS, WIDTH // HEADS)
        x = torch.bmm(torch.bmm(q, k.mT).softmax(dim=-1), v)  # (batch and head, token, width of a head)
        self._tell()
        x = x.view(BATCH, HEADS, TOKENS, -1).transpose(1, 2).reshape(BATCH, TOKENS, WIDTH)
        x = self.projection(x)
        self._tell()
        logits: Tensor = self.head(x.mean(dim=1))
        del x
        self._tell()
        return logits

    def _tell(self) -> None:
        self.allocated.append(allocated())


def allocated() -> int:
    """Returns the bytes of all tensors: without cuBLAS's workspaces, which torch keeps before 2.15."""
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()


def granules(*sizes: int) -> int:
    """Returns what the allocator counts for tensors of these bytes."""
    return sum(-(-size // GRANULE) * GRANULE for size in sizes)


def checks() -> Iterator[Check]:
    """Yields what each phase should hold and holds; nothing is left when it ends."""
    yield from _segments()
    yield from _product()
    yield from _fused_attention()
    for is_fused in (False, True):
        yield from _training(is_fused=is_fused)
    yield "the end", 0, allocated()
    yield from _capacity()


def _segments() -> Iterator[Check]:
    """A small, a middling and a large request; then nothing."""
    kept = [torch.empty(1, device="cuda")]
    yield "a small tensor", GRANULE, torch.cuda.memory_allocated()
    yield "a small tensor's segment", SMALL_SEGMENT, torch.cuda.memory_reserved()
    kept.append(torch.empty(3 * MIB + 1, dtype=torch.uint8, device="cuda"))
    yield "3 MiB and a byte", GRANULE + granules(3 * MIB + 1), torch.cuda.memory_allocated()
    yield "3 MiB's segment", SMALL_SEGMENT + LARGE_SEGMENT, torch.cuda.memory_reserved()
    kept.append(torch.empty(21 * MIB, dtype=torch.uint8, device="cuda"))
    yield "21 MiB's segment", SMALL_SEGMENT + LARGE_SEGMENT + 22 * MIB, torch.cuda.memory_reserved()
    kept.clear()
    yield "what is deleted", 0, torch.cuda.memory_allocated()
    torch.cuda.empty_cache()
    yield "an emptied cache", 0, torch.cuda.memory_reserved()


def _product() -> Iterator[Check]:
    """A matrix product's result, and its peak, which cuBLAS's workspace is in."""
    factor = torch.zeros(SIDE, SIDE, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    result = factor @ factor
    yield "a product's peak", 2 * granules(FLOAT * SIDE**2) + CUBLAS_WORKSPACE, torch.cuda.max_memory_allocated()
    yield "a product", granules(FLOAT * SIDE**2) + granules(result.nbytes), allocated()


def _fused_attention() -> Iterator[Check]:
    """Attention by one kernel, in both precisions that have one: its result alone."""
    for dtype in (torch.float32, torch.bfloat16):
        q = torch.zeros(BATCH, HEADS, TOKENS, WIDTH // HEADS, dtype=dtype, device="cuda")
        with torch.no_grad():
            result = functional.scaled_dot_product_attention(q, q, q)
        yield f"attention in {dtype}", granules(q.nbytes) + granules(dtype.itemsize * q.numel()), allocated()
        del q, result


def _training(*, is_fused: bool) -> Iterator[Check]:
    """One step of training, from the model to the last `del`."""
    name = "fused" if is_fused else "foreach"
    weights = granules(*(FLOAT * number for number in PARAMETERS))
    model = Step().cuda()
    yield f"{name}: weights", weights, allocated()
    images = torch.zeros(BATCH, CHANNELS, SIDE, SIDE, device="cuda")
    labels = torch.zeros(BATCH, dtype=torch.int64, device="cuda")
    held = weights + granules(FLOAT * BATCH * CHANNELS * SIDE**2, INTEGER * BATCH)
    yield f"{name}: the batch", held, allocated()

    loss = functional.cross_entropy(model(images), labels)
    for (part, live), found in zip(_forward(), model.allocated, strict=True):
        yield f"{name}: forward: {part}", held + live, found
    yield f"{name}: forward: loss", held + _saved() + granules(FLOAT), allocated()

    loss.backward()
    held += granules(FLOAT)
    yield f"{name}: backward", held + weights, allocated()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=not is_fused, fused=is_fused)
    optimizer.step()
    steps = len(PARAMETERS) * granules(FLOAT) if is_fused else 0  # foreach counts its steps on the CPU
    yield f"{name}: AdamW", held + weights + 2 * weights + steps, allocated()
    optimizer.zero_grad()
    yield f"{name}: gradients deleted", held + 2 * weights + steps, allocated()
    del optimizer
    yield f"{name}: states deleted", held, allocated()


TOKEN_BYTES = FLOAT * BATCH * TOKENS * WIDTH  # of one tensor (batch, token, width)
ROW_BYTES = FLOAT * BATCH * TOKENS  # of one number a token


def _forward() -> Iterator[tuple[str, int]]:
    """Yields what is live after each part of the forward: its result, and what the parts before it saved."""
    live = granules(TOKEN_BYTES)
    yield "convolution", live
    live += granules(TOKEN_BYTES, ROW_BYTES, ROW_BYTES)  # it saves its input, its mean and its deviation
    yield "layer norm", live
    yield "linear", live + granules(3 * TOKEN_BYTES)
    live += granules(3 * TOKEN_BYTES, HEADS * TOKENS * ROW_BYTES)  # copies of q, k and v, and the softmax
    yield "attention", live + granules(TOKEN_BYTES)
    live += granules(TOKEN_BYTES)
    yield "projection", live + granules(TOKEN_BYTES)
    live += granules(FLOAT * BATCH * WIDTH)
    yield "head", live + granules(FLOAT * BATCH * CLASSES)


def _saved() -> int:
    """Returns what the backward needs: what is live at last, its logits as logarithms; and the sum of the weights."""
    *_, (_, live) = _forward()
    return live + granules(FLOAT)


def _capacity() -> Iterator[Check]:
    """The card's whole memory fits once it is free, and no byte more."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    kept = [torch.empty(total, dtype=torch.uint8, device="cuda")]
    yield "the whole card", total, torch.cuda.memory_reserved()
    with suppress(torch.OutOfMemoryError):
        kept.append(torch.empty(1, dtype=torch.uint8, device="cuda"))
    yield "a byte more", total, torch.cuda.memory_allocated()


def main() -> None:
    """Print torch's version and the checks, as one line of JSON."""
    print(json.dumps({"torch": torch.__version__, "checks": list(checks())}))
