"""Torch's switches that hold for a whole process, as they stand: knows nothing of who turned them."""

from __future__ import annotations

import torch


def switches() -> dict[str, str]:
    """Every switch that changes what a step gives, takes or keeps, by the name that it has in torch."""
    return {
        "default dtype": str(torch.get_default_dtype()),
        "default device": str(torch.get_default_device()),
        "threads": str(torch.get_num_threads()),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "cudnn.enabled": str(torch.backends.cudnn.enabled),
        "cudnn.benchmark": str(torch.backends.cudnn.benchmark),
        "cudnn.deterministic": str(torch.backends.cudnn.deterministic),
        "cudnn.allow_tf32": str(torch.backends.cudnn.allow_tf32),
        "gradients": str(torch.is_grad_enabled()),
        "anomaly detection": str(torch.is_anomaly_enabled()),
    }


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """`threads 2 -> 1`: each switch that stands otherwise now."""
    return [f"{name} {one} -> {after[name]}" for name, one in before.items() if after[name] != one]
