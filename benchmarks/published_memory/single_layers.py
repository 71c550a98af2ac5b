"""Single layers and losses, as Liger-Kernel's benchmark compares its kernels with PyTorch's own.

Each function returns a module, a batch and a loss for `gcprof`. That benchmark keeps the gradients from one round to
the next, the input's too; where it hands a gradient to the output, it holds it, and retains the graph.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

Made = tuple[nn.Module, Any, Callable[..., torch.Tensor]]


class OnInput(nn.Module):
    """A layer and its input, which has a gradient as well."""

    def __init__(self, layer: nn.Module, *shape: int) -> None:
        super().__init__()
        self.layer = layer
        self.x = nn.Parameter(torch.randn(shape))

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        return self.layer(self.x)


def retained(output: torch.Tensor, gradient: Any) -> torch.Tensor:
    """Return a scalar of which the backward is that of `output` from a gradient, or one made then; the graph stays."""
    scalar = output.detach().new_zeros(())
    scalar.backward = lambda: output.backward(gradient() if callable(gradient) else gradient, retain_graph=True)
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
    return OnInput(nn.LayerNorm(width, eps=1e-6), rows, width), torch.randn(rows, width), retained


def gated_mlp(width: int, inner: int, activation: str) -> nn.Module:
    return LlamaMLP(LlamaConfig(hidden_size=width, intermediate_size=inner, hidden_act=activation))


def gated(
    time: int = 1024, batch_size: int = 4, width: int = 4096, inner: int = 11_008, activation: str = "silu"
) -> Made:
    """A gated MLP with SiLU, or the GELU of a hyperbolic tangent."""
    mlp = OnInput(gated_mlp(width, inner, activation), batch_size, time, width)
    return mlp, (), lambda output: retained(output, lambda: torch.randn_like(output))


def jensen_shannon(student: torch.Tensor, teacher: torch.Tensor, beta: float = 0.5) -> torch.Tensor:
    """Return the divergence of two log-probabilities in fp32, in the student's type."""
    divergence = nn.KLDivLoss(reduction="none", log_target=True)
    dtype = student.dtype
    teacher, student = teacher.float(), student.float()
    mixed = torch.lerp(student.exp(), teacher.exp(), beta)
    of_teacher = beta * divergence(mixed.log(), teacher).sum(dim=-1)
    rows = of_teacher + (1 - beta) * divergence(mixed.log(), student).sum(dim=-1)
    return (rows / student.shape[0]).sum().to(dtype)


def heads_jsd(rows: int = 1024, width: int = 4096, vocabulary: int = 128_256) -> Made:
    """The heads of a student and a teacher and their divergence; the teacher's weights have gradients too."""
    student = OnInput(nn.Linear(width, vocabulary, bias=False), rows, width)
    student.teacher = nn.Linear(width, vocabulary, bias=False)

    def divergence(student_logits: torch.Tensor, teacher_input: torch.Tensor) -> torch.Tensor:
        teacher_logits = student.teacher(teacher_input)
        logs = torch.log_softmax(student_logits / 1.0, dim=-1)
        return jensen_shannon(logs, torch.log_softmax(teacher_logits / 1.0, dim=-1))

    return student, torch.randn(rows, width), divergence


def rms_norm(width: int = 1024, rows: int = 2048) -> Made:
    """Llama's RMS norm; its weight stays in fp32 beside an input in bfloat16."""
    made = OnInput(LlamaRMSNorm(width), rows, width)
    made.x.data = made.x.data.bfloat16()
    return made, torch.randn(rows, width, dtype=torch.bfloat16), retained


def group_norm(channels: int = 32, rows: int = 128, time: int = 512, per_group: int = 4) -> Made:
    """PyTorch's GroupNorm."""
    layer = nn.GroupNorm(channels // per_group, channels, eps=1e-6)
    return OnInput(layer, rows, channels, time), torch.randn(rows, channels, time), retained


class MultiTokenAttention(nn.Conv2d):
    """Causal softmax of scores, then a convolution over them, masked again."""

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        time = scores.shape[-1]
        mask = torch.tril(torch.ones(time, time, dtype=torch.bool, device=scores.device)).view(1, 1, time, time)
        low, zero = (torch.full((), value, device=scores.device, dtype=scores.dtype) for value in (-1e9, 0.0))
        weights = functional.softmax(scores.masked_fill(~mask, low), dim=-1)
        return super().forward(weights).masked_fill(~mask, zero)


def multi_token_attention(time: int = 256, batch_size: int = 2, channels: int = 4, kernel: int = 3) -> Made:
    """Attention whose scores are mixed by a convolution."""
    shape = (batch_size, channels, time, time)
    mixing = MultiTokenAttention(channels, channels, kernel, padding=kernel // 2)
    return OnInput(mixing, *shape), torch.randn(shape), retained


def kl_divergence(vocabulary: int = 4096, rows: int = 16_384) -> Made:
    """PyTorch's KLDivLoss against probabilities."""
    target = torch.randn(rows, vocabulary).softmax(dim=-1)
    return _on_logs(nn.KLDivLoss(reduction="batchmean"), target)


def js_divergence(vocabulary: int = 4096, rows: int = 8192) -> Made:
    """The Jensen-Shannon divergence against log-probabilities."""
    return _on_logs(jensen_shannon, torch.randn(rows, vocabulary).log_softmax(dim=-1))


def _on_logs(divergence: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], target: torch.Tensor) -> Made:
    """Return a divergence of log-probabilities that are made once, of a leaf, and whose graph is retained."""
    made = OnInput(nn.Identity(), *target.shape)
    made.register_buffer("logs", made.x.log_softmax(dim=-1))
    return made, target, lambda _, target: retained(divergence(made.logs, target), None)
