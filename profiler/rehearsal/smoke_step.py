"""A small training step on the hollow device: the bytes of each phase as expected by arithmetic, and as read.

Runs in its own process, which has loaded the libraries before torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.nn import functional

GRANULE = 512  # bytes: what the CUDA caching allocator rounds every request up to
MIB = 1 << 20
SMALL_SEGMENT, LARGE_SEGMENT = 2 * MIB, 20 * MIB  # allocated from CUDA for requests up to 1 and 10 MiB
FLOAT, INTEGER = 4, 8  # bytes of an element
BATCH, CHANNELS, SIDE, PATCH = 8, 3, 32, 4
WIDTH, HEADS, CLASSES = 64, 4, 10
TOKENS = (SIDE // PATCH) ** 2
CUBLAS_WORKSPACE = 8 * (16 << 10)  # bytes, as smoke.py asks for them

Check = tuple[str, int, int]  # the phase, its bytes as expected, its bytes as read

PARAMETERS = (  # numbers of elements
    WIDTH * CHANNELS * PATCH**2, WIDTH,  # convolution
    WIDTH, WIDTH,  # layer norm
    3 * WIDTH * WIDTH, 3 * WIDTH,  # queries, keys, values
    WIDTH * WIDTH, WIDTH,  # projection
    CLASSES * WIDTH, CLASSES,  # head
)  # fmt: skip


class Step(nn.Module):
    """A transformer layer on patches of images."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(CHANNELS, WIDTH, PATCH, stride=PATCH)
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits: (batch, classes)."""
        x = self.patches(images).flatten(2).transpose(1, 2).contiguous()  # (batch, token, width)
        x = self.qkv(self.norm(x)).view(BATCH, TOKENS, 3, HEADS, WIDTH // HEADS)
        q, k, v = x.permute(2, 0, 3, 1, 4).reshape(3, BATCH * HEADS, TOKENS, WIDTH // HEADS)
        x = torch.bmm(torch.bmm(q, k.mT).softmax(dim=-1), v)  # (batch and head, token, width of a head)
        x = x.view(BATCH, HEADS, TOKENS, -1).transpose(1, 2).reshape(BATCH, TOKENS, WIDTH)
        logits: Tensor = self.head(self.projection(x).mean(dim=1))
        return logits


def allocated() -> int:
    """Return the bytes of all tensors, without cuBLAS's workspaces, which torch before 2.15 keeps."""
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()


def granules(*sizes: int) -> int:
    """Return what the allocator counts for tensors of these bytes."""
    return sum(-(-size // GRANULE) * GRANULE for size in sizes)


def checks() -> Iterator[Check]:
    """Yield the bytes of each phase, as expected and as read; nothing is left allocated at the end."""
    yield from _segments()
    yield from _product()
    yield from _fused_attention()
    for is_fused in (False, True):
        yield from _training(is_fused=is_fused)
    yield "the end", 0, allocated()
    yield from _capacity()


def _segments() -> Iterator[Check]:
    """Check a small, a medium and a large request, and that nothing is left after them."""
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
    """Check the peak of a matrix product, which includes cuBLAS's workspace, and its result."""
    factor = torch.zeros(SIDE, SIDE, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    result = factor @ factor
    yield "a product's peak", 2 * granules(FLOAT * SIDE**2) + CUBLAS_WORKSPACE, torch.cuda.max_memory_allocated()
    yield "a product", granules(FLOAT * SIDE**2) + granules(result.nbytes), allocated()


def _fused_attention() -> Iterator[Check]:
    """Check that fused attention, in both precisions that have such a kernel, leaves only its result."""
    for dtype in (torch.float32, torch.bfloat16):
        q = torch.zeros(BATCH, HEADS, TOKENS, WIDTH // HEADS, dtype=dtype, device="cuda")
        with torch.no_grad():
            result = functional.scaled_dot_product_attention(q, q, q)
        yield f"attention in {dtype}", granules(q.nbytes) + granules(dtype.itemsize * q.numel()), allocated()
        del q, result


def _training(*, is_fused: bool) -> Iterator[Check]:
    """Check one training step, from building the model to the last `del`."""
    name = "fused" if is_fused else "foreach"
    weights = granules(*(FLOAT * number for number in PARAMETERS))
    model = Step().cuda()
    yield f"{name}: weights", weights, allocated()
    images = torch.zeros(BATCH, CHANNELS, SIDE, SIDE, device="cuda")
    labels = torch.zeros(BATCH, dtype=torch.int64, device="cuda")
    held = weights + granules(FLOAT * BATCH * CHANNELS * SIDE**2, INTEGER * BATCH)
    yield f"{name}: the batch", held, allocated()

    loss = functional.cross_entropy(model(images), labels)
    saved = granules(*(size for sizes in SAVED.values() for size in sizes))
    yield f"{name}: forward", held + saved + granules(FLOAT), allocated()

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
ROW_BYTES = FLOAT * BATCH * TOKENS  # of one tensor (batch, token)
SAVED = {  # bytes of what each part saves for the backward
    "layer norm": (TOKEN_BYTES, ROW_BYTES, ROW_BYTES),  # its input, its mean and its deviation
    "linear": (TOKEN_BYTES,),
    "attention": (3 * TOKEN_BYTES, HEADS * TOKENS * ROW_BYTES),  # copies of q, k and v, and the softmax
    "projection": (TOKEN_BYTES,),
    "head": (FLOAT * BATCH * WIDTH,),
    "loss": (FLOAT * BATCH * CLASSES, FLOAT),  # log-probabilities, and the sum of weights
}


def _capacity() -> Iterator[Check]:
    """Check that the whole memory can be allocated once it is free, and no byte more."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    kept = [torch.empty(total, dtype=torch.uint8, device="cuda")]
    yield "the whole card", total, torch.cuda.memory_reserved()
    with suppress(torch.OutOfMemoryError):
        kept.append(torch.empty(1, dtype=torch.uint8, device="cuda"))
    yield "a byte more", total, torch.cuda.memory_allocated()


def architectures() -> str:
    """Return what the installed torch's kernels are compiled for, as HOLLOW_ARCHS has it: `75,80,90`."""
    numbers = {int(flag.split("_")[1].rstrip("af")) for flag in str(torch._C._cuda_getArchFlags()).split()}
    return ",".join(map(str, sorted(numbers)))


def main() -> None:
    """Print torch's version, its architectures and the checks, as one line of JSON."""
    os.environ["HOLLOW_ARCHS"] = archs = architectures()
    print(json.dumps({"torch": torch.__version__, "archs": archs, "checks": list(checks())}))
