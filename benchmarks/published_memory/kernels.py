"""Single layers and losses, as Liger-Kernel's benchmark compares its kernels with PyTorch's own.

Each function returns a module, a batch and a loss for `gcprof`. That benchmark keeps the gradients from one round to
the next, the input's too; where it hands a gradient to the output, it holds it, and retains the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Made = tuple[nn.Module, Any, Callable[..., torch.Tensor]]


class OnInput(nn.Module):
    """A layer and its input, which has a gradient as well."""

    def __init__(self, layer: nn.Module, *shape: int) -> None:
        super().__init__()
        self.layer = layer
        self.x = nn.Parameter(torch.randn(shape))

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        return self.layer(self.x)


def from_gradient(output: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Returns a scalar of which the backward is that of `output` from `gradient`, the graph retained."""
    scalar = output.detach().new_zeros(())
    scalar.backward = lambda: output.backward(gradient, retain_graph=True)  # type: ignore[method-assign]
    return scalar


def from_noise(output: torch.Tensor) -> torch.Tensor:
    """Returns a scalar whose backward draws the gradient of `output` first, the graph retained."""
    scalar = output.detach().new_zeros(())
    scalar.backward = lambda: output.backward(torch.randn_like(output), retain_graph=True)  # type: ignore[method-assign]
    return scalar


def cross_entropy(vocabulary: int = 4096, rows: int = 16_384) -> Made:
    """Cross entropy of logits."""
    return OnInput(nn.Identity(), rows, vocabulary), ((), torch.randint(vocabulary, (rows,))), nn.CrossEntropyLoss()


def head_cross_entropy(rows: int = 4096, width: int = 4096, vocabulary: int = 128_256) -> Made:
    """A linear head without a bias, then cross entropy; a second head, of the kernel it is compared with, idles."""
    head = OnInput(nn.Linear(width, vocabulary, bias=False), rows, width)
    head.idle = nn.Linear(width, vocabulary, bias=False)
    return head, ((), torch.randint(vocabulary, (rows,))), nn.CrossEntropyLoss()


def layer_norm(width: int = 1024, rows: int = 4096) -> Made:
    """PyTorch's LayerNorm."""
    return OnInput(nn.LayerNorm(width, eps=1e-6), rows, width), torch.randn(rows, width), from_gradient


class GatedMlp(nn.Module):
    """down(activation(gate(x)) * up(x)), without biases, as in Llama."""

    def __init__(self, width: int, inner: int, activation: nn.Module) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.activation(self.gate(x)) * self.up(x))


def swiglu(time: int = 1024, batch_size: int = 4, width: int = 4096, inner: int = 11_008) -> Made:
    """A gated MLP with SiLU."""
    return OnInput(GatedMlp(width, inner, nn.SiLU()), batch_size, time, width), (), from_noise


def geglu(time: int = 1024, batch_size: int = 8, width: int = 4096, inner: int = 11_008) -> Made:
    """A gated MLP with the GELU of a hyperbolic tangent."""
    return OnInput(GatedMlp(width, inner, nn.GELU(approximate="tanh")), batch_size, time, width), (), from_noise


class Distillation(nn.Module):
    """The heads of a student and a teacher, and the Jensen-Shannon divergence of what they foretell, in fp32."""

    def __init__(self, rows: int, width: int, vocabulary: int, beta: float = 0.5) -> None:
        super().__init__()
        self.student = nn.Linear(width, vocabulary, bias=False)
        self.teacher = nn.Linear(width, vocabulary, bias=False)
        self.x = nn.Parameter(torch.randn(rows, width))
        self.divergence = nn.KLDivLoss(reduction="none", log_target=True)
        self.beta = beta

    def forward(self, teacher_input: torch.Tensor) -> torch.Tensor:
        student_logits = self.student(self.x)
        teacher_logits = self.teacher(teacher_input)
        student = torch.log_softmax(student_logits / 1.0, dim=-1)
        teacher = torch.log_softmax(teacher_logits / 1.0, dim=-1)
        return self.jensen_shannon(student, teacher)

    def jensen_shannon(self, student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        dtype = student.dtype
        teacher, student = teacher.float(), student.float()
        mixed = torch.lerp(student.exp(), teacher.exp(), self.beta)
        of_teacher = self.beta * self.divergence(mixed.log(), teacher).sum(dim=-1)
        rows = of_teacher + (1 - self.beta) * self.divergence(mixed.log(), student).sum(dim=-1)
        return (rows / student.shape[0]).sum().to(dtype)


def heads_jsd(rows: int = 1024, width: int = 4096, vocabulary: int = 128_256) -> Made:
    """Two heads and their divergence; the teacher's weights have gradients too."""
    return Distillation(rows, width, vocabulary), torch.randn(rows, width), lambda output: output


class RmsNorm(nn.Module):
    """The RMS norm of transformers' Llama: in fp32, the result in the input's type."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.weight * x.to(dtype)


def rms_norm(width: int = 1024, rows: int = 2048) -> Made:
    """Llama's RMS norm; its weight stays in fp32 beside an input in bfloat16."""
    made = OnInput(RmsNorm(width), rows, width)
    made.x.data = made.x.data.bfloat16()
    return made, torch.randn(rows, width, dtype=torch.bfloat16), from_gradient


def embedding(vocabulary: int = 1024, batch_size: int = 32, time: int = 512, width: int = 768) -> Made:
    """PyTorch's Embedding."""
    return nn.Embedding(vocabulary, width), torch.randint(vocabulary, (batch_size, time)), drawn


def drawn(output: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Returns a scalar whose backward draws the gradient of `output` first."""
    scalar = output.detach().new_zeros(())
    scalar.backward = lambda: output.backward(torch.randn_like(output))  # type: ignore[method-assign]
    return scalar


def group_norm(channels: int = 32, rows: int = 128, time: int = 512, per_group: int = 4) -> Made:
    """PyTorch's GroupNorm."""
    layer = nn.GroupNorm(channels // per_group, channels, eps=1e-6)
    return OnInput(layer, rows, channels, time), torch.randn(rows, channels, time), from_gradient


class MultiTokenAttention(nn.Module):
    """Causal softmax of scores, then a convolution over them, masked again."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, channels, kernel, kernel) / math.sqrt(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        time = scores.shape[-1]
        mask = torch.tril(torch.ones(time, time, dtype=torch.bool, device=scores.device)).view(1, 1, time, time)
        low = torch.full((), -1e9, device=scores.device, dtype=scores.dtype)
        zero = torch.zeros((), device=scores.device, dtype=scores.dtype)
        weights = functional.softmax(scores.masked_fill(~mask, low), dim=-1)
        mixed = functional.conv2d(weights, self.weight, self.bias, padding=self.weight.shape[-1] // 2)
        return mixed.masked_fill(~mask, zero)


def multi_token_attention(time: int = 256, batch_size: int = 2, channels: int = 4, kernel: int = 3) -> Made:
    """Attention whose scores are mixed by a convolution."""
    shape = (batch_size, channels, time, time)
    return OnInput(MultiTokenAttention(channels, kernel), *shape), torch.randn(shape), from_gradient


class OrpoLoss(nn.Module):
    """Odds-ratio preference optimisation on a head: logits in fp32, the first half of the batch preferred."""

    def __init__(self, batch_size: int, time: int, width: int, vocabulary: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.x = nn.Parameter(torch.randn(batch_size, time, width))

    def forward(self, target: torch.Tensor) -> torch.Tensor:
        half = target.shape[0] // 2
        logits = self.head(self.x).float()  # (batch, time, vocabulary)
        likelihood = functional.cross_entropy(logits[:half].view(-1, logits.shape[-1]), target[:half].view(-1))
        is_real = target != -100
        labels = torch.where(target == -100, 0, target)
        tokens = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
        means = (tokens * is_real).sum(-1) / is_real.sum(-1)
        chosen, rejected = means[:half], means[half:]
        odds = (chosen - rejected) - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
        return likelihood - 0.1 * functional.logsigmoid(odds).sum() / half


def head_orpo(batch_size: int = 2, time: int = 1024, width: int = 4096, vocabulary: int = 128_256) -> Made:
    """A head and the preference loss."""
    target = torch.randint(vocabulary, (batch_size, time))
    return OrpoLoss(batch_size, time, width, vocabulary), target, lambda output, batch: output
