"""Llama 2 in its published sizes, built with transformers' own code and random weights."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from profiler.core.catalogue import Count
from profiler.core.errors import Unsupported
from profiler.training.workload import Workload

try:
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError:
    raise Unsupported("transformers is not installed: pip install 'gcprof[hf]'") from None

VOCABULARY, POSITIONS = 32_000, 4096
# Touvron et al. 2023, "Llama 2: Open Foundation and Fine-Tuned Chat Models" (arXiv:2307.09288), table 1 and appendix
# A.2.1, and "LLaMA" (arXiv:2302.13971), table 2; the MLP widths are those of the config.json that Meta published with
# the weights. Of the published sizes only 70b has grouped-query attention.
SIZES = {
    "tiny": {"hidden_size": 64, "intermediate_size": 172, "layers": 4, "heads": 4, "key_heads": 2, "vocabulary": 256},
    "7b": {"hidden_size": 4096, "intermediate_size": 11_008, "layers": 32, "heads": 32, "key_heads": 32},
    "13b": {"hidden_size": 5120, "intermediate_size": 13_824, "layers": 40, "heads": 40, "key_heads": 40},
    "70b": {"hidden_size": 8192, "intermediate_size": 28_672, "layers": 80, "heads": 64, "key_heads": 8},
}


def build(
    batch_size: int = 1, *, size: Literal["tiny", "7b", "13b", "70b"] = "tiny", sequence: Count = 256
) -> Workload:
    """Llama 2 with 7, 13 or 70 billion parameters, for predictions; `tiny` is for trying things out.

    `sequence` is in tokens, at most 4096. The loss is that of the next token, the cache is off, the attention is
    PyTorch's. Raises Unsupported for a longer sequence.
    """
    if sequence > POSITIONS:
        raise Unsupported(f"sequence={sequence} is longer than the {POSITIONS} positions of Llama 2")
    settings = _settings(SIZES[size])
    module = LlamaForCausalLM(settings)
    tokens = torch.randint(settings.vocab_size, (batch_size, sequence))  # (batch, time)
    blocks = tuple(f"model.layers.{number}" for number in range(settings.num_hidden_layers))
    batch = {"input_ids": tokens, "labels": tokens.clone()}
    return Workload(module=module, blocks=blocks, batch=batch, loss=_loss)


def _settings(size: dict[str, int]) -> Any:
    kind: Any = LlamaConfig  # not all of its keywords are declared
    return kind(
        vocab_size=size.get("vocabulary", VOCABULARY),
        hidden_size=size["hidden_size"],
        intermediate_size=size["intermediate_size"],
        num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"],
        num_key_value_heads=size["key_heads"],
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=False,
        use_cache=False,
        attn_implementation="sdpa",
    )


def _loss(module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    loss: torch.Tensor = module(**batch).loss
    return loss
