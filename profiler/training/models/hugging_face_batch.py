"""A random batch with labels that fits a config of transformers and a head: knows nothing of the models."""

from __future__ import annotations

from typing import Any

import torch

from profiler.core.errors import Unsupported

OWN_PIXELS = 224  # of families whose config names no size: convolutional ones, which take any


def batch(settings: Any, head: str, batch_size: int, *, sequence: int, size: str) -> dict[str, torch.Tensor]:
    """What the model's forward takes as keywords, labels among it. Raises Unsupported where a length does not fit."""
    if head == "image":
        return _images(settings, batch_size, size)
    if size != "own":
        raise Unsupported(f"size={size} has no effect: this head takes no images")
    if head == "speech":
        return _speech(settings, batch_size, sequence)
    tokens = _tokens(settings.get_text_config(), batch_size, sequence)
    if head == "classification":
        return {"input_ids": tokens, "labels": torch.randint(settings.num_labels, (batch_size,))}
    return {"input_ids": tokens, "labels": tokens.clone()}  # each (batch, time)


def _tokens(text: Any, batch_size: int, sequence: int) -> torch.Tensor:
    """Random tokens, none of them special but the end, where there is one. (batch, time)"""
    longest = getattr(text, "max_position_embeddings", None)
    if isinstance(longest, int) and 0 < longest < sequence:
        raise Unsupported(f"sequence={sequence} is longer than the {longest} positions of the config")
    special = {getattr(text, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "decoder_start")}
    plain = torch.tensor([token for token in range(text.vocab_size) if token not in special])
    tokens = plain[torch.randint(len(plain), (batch_size, sequence))]
    if isinstance(end := getattr(text, "eos_token_id", None), int):
        tokens[:, -1] = end
    return tokens


def _images(settings: Any, batch_size: int, size: str) -> dict[str, torch.Tensor]:
    if size != "own" and not (size.isascii() and size.isdigit() and int(size)):
        raise Unsupported(f"size={size} is no number of pixels")
    own = getattr(settings, "image_size", OWN_PIXELS)
    height, width = own if isinstance(own, (list, tuple)) else (own, own)
    if size != "own":
        height = width = int(size)
    channels = getattr(settings, "num_channels", 3)
    images = torch.randn(batch_size, channels, height, width)
    return {"pixel_values": images, "labels": torch.randint(settings.num_labels, (batch_size,))}


def _speech(settings: Any, batch_size: int, sequence: int) -> dict[str, torch.Tensor]:
    """Mel features as long as the encoder wants them, halved by its second convolution, and a transcript."""
    if not hasattr(settings, "max_source_positions") or not hasattr(settings, "num_mel_bins"):
        raise Unsupported("the speech head has a batch for whisper's kind of features only")
    if sequence > settings.max_target_positions:
        raise Unsupported(f"sequence={sequence} is longer than the {settings.max_target_positions} positions")
    features = torch.randn(batch_size, settings.num_mel_bins, 2 * settings.max_source_positions)
    return {"input_features": features, "labels": _tokens(settings, batch_size, sequence)}
