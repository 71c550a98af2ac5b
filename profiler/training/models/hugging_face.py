"""Models of transformers, from their configs with random weights: any family, and Llama 2 in its published sizes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import nn

from profiler.core.catalogue import Count
from profiler.core.errors import Unsupported, similar
from profiler.training.workload import Workload

try:
    import transformers
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto
except ImportError:
    raise Unsupported("transformers is not installed: pip install transformers accelerate") from None

HEADS = {  # `auto` takes the first that a family has
    "speech": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING",
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING",
    "image": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    "classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
}
OWN_PIXELS = 224  # for families whose config has no image size: convolutional ones, which take any size
VOCABULARY, POSITIONS = 32_000, 4096
# Touvron et al. 2023, "Llama 2: Open Foundation and Fine-Tuned Chat Models" (arXiv:2307.09288), table 1 and appendix
# A.2.1, and "LLaMA" (arXiv:2302.13971), table 2; the MLP widths are those of the config.json that Meta published with
# the weights. Of the published sizes only 70b has grouped-query attention.
SIZES = {  # attributes of the config
    "tiny": {"hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 4, "num_attention_heads": 4,
             "num_key_value_heads": 2, "vocab_size": 256},
    "7b": {"hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32, "num_attention_heads": 32},
    "13b": {"hidden_size": 5120, "intermediate_size": 13_824, "num_hidden_layers": 40, "num_attention_heads": 40},
    "70b": {"hidden_size": 8192, "intermediate_size": 28_672, "num_hidden_layers": 80, "num_attention_heads": 64,
            "num_key_value_heads": 8},
}  # fmt: skip


def build(
    name: str,
    batch_size: int = 8,
    *,
    head: Literal["auto", "speech", "seq2seq", "masked", "causal", "image", "classification"] = "auto",
    sequence: Count = 64,
    size: str = "own",
    **config: Any,
) -> Workload:
    """Any family of transformers (bert, llama, t5, vit) by its config, random weights, nothing downloaded.

    Every other option sets that attribute of the config: hidden_size=64. `head` is what is trained: the first of
    speech, seq2seq, masked, causal, image, classification that the family has; `sequence` is in tokens, `size` is the
    side of an image in pixels. The loss is the model's own, the cache is off. Special tokens beyond a smaller
    vocabulary move into it. Raises Unsupported for a family, a head or an attribute that there is not.
    """
    settings = _settings(name, config)
    heads = [word for word in HEADS if type(settings) in getattr(modeling_auto, HEADS[word])]
    chosen = heads[0] if head == "auto" and heads else head
    if chosen not in heads:
        no_head = f"no head '{head}'; it has {', '.join(heads)}" if heads else f"none of the heads {', '.join(HEADS)}"
        raise Unsupported(f"hf:{name} has {no_head}")
    if hasattr(settings, "image_size") and size.isdigit():
        settings.image_size = int(size)
    settings.use_cache = False  # of keys and values: whole sequences train
    text = settings.get_text_config()
    if chosen == "seq2seq" and getattr(settings, "decoder_start_token_id", None) is None:
        settings.decoder_start_token_id = getattr(text, "pad_token_id", None)
    vocabulary = getattr(text, "vocab_size", None)
    if chosen == "classification" and getattr(text, "pad_token_id", None) is None:
        text.pad_token_id = 0  # else it is not known where a sequence ends
    for key in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        token = getattr(text, key, None)
        if vocabulary is not None and isinstance(token, int) and token >= vocabulary:
            setattr(text, key, vocabulary - 1)
    kind: Any = getattr(modeling_auto, HEADS[chosen])[type(settings)]
    module: nn.Module = (kind[0] if isinstance(kind, tuple) else kind)(settings)
    inputs = batch(settings, chosen, batch_size, sequence=sequence, size=size)
    return Workload(module=module, batch=inputs, loss=_own_loss)


def _settings(name: str, config: dict[str, Any]) -> Any:
    """Return the family's config with these overrides."""
    if name not in CONFIG_MAPPING:
        near = _nearest(name, CONFIG_MAPPING)
        raise Unsupported(f"transformers {transformers.__version__} has no family '{name}'{near}")
    kind = CONFIG_MAPPING[name]
    defaults = kind()
    for key in config:
        if not hasattr(defaults, key):
            near = _nearest(key, ["batch_size", "head", "sequence", "size", *defaults.to_dict()])
            raise Unsupported(f"hf:{name} has no '{key}'{near}")
    try:
        return kind(**config)
    except Exception as error:  # noqa: BLE001  each family checks its values in its own way
        raise Unsupported(f"hf:{name} refuses its config: {type(error).__name__}: {error}") from None


def _nearest(word: str, words: Iterable[str]) -> str:
    near = similar(word, list(words))
    return f"; the nearest is '{near[0]}'" if near else ""


def _own_loss(module: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    loss: torch.Tensor = module(**inputs).loss
    return loss


def batch(settings: Any, head: str, batch_size: int, *, sequence: int, size: str) -> dict[str, torch.Tensor]:
    """Return the keyword arguments of the model's forward, with labels. Raises Unsupported if a length does not fit."""
    if head == "image":
        if size != "own" and not (size.isascii() and size.isdigit() and int(size)):
            raise Unsupported(f"size={size} is not a number of pixels")
        own = getattr(settings, "image_size", OWN_PIXELS) if size == "own" else int(size)
        sides = own if isinstance(own, (list, tuple)) else (own, own)  # height and width
        images = torch.randn(batch_size, getattr(settings, "num_channels", 3), *sides)
        return {"pixel_values": images, "labels": torch.randint(settings.num_labels, (batch_size,))}
    if size != "own":
        raise Unsupported(f"size={size} has no effect: this head takes no images")
    if head == "speech":  # mel features, twice the encoder's length since its second convolution halves them
        if not hasattr(settings, "max_source_positions") or not hasattr(settings, "num_mel_bins"):
            raise Unsupported("the speech head has a batch for whisper's kind of features only")
        if sequence > settings.max_target_positions:
            raise Unsupported(f"sequence={sequence} is longer than the {settings.max_target_positions} positions")
        features = torch.randn(batch_size, settings.num_mel_bins, 2 * settings.max_source_positions)
        return {"input_features": features, "labels": _tokens(settings, batch_size, sequence)}
    tokens = _tokens(settings.get_text_config(), batch_size, sequence)
    if head == "classification":
        return {"input_ids": tokens, "labels": torch.randint(settings.num_labels, (batch_size,))}
    return {"input_ids": tokens, "labels": tokens.clone()}  # each (batch, time)


def _tokens(text: Any, batch_size: int, sequence: int) -> torch.Tensor:
    """Return random tokens (batch, time), none of them special except a final end token, if the config has one."""
    longest = getattr(text, "max_position_embeddings", None)
    if isinstance(longest, int) and 0 < longest < sequence:
        raise Unsupported(f"sequence={sequence} is longer than the {longest} positions of the config")
    special = {getattr(text, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "decoder_start")}
    plain = torch.tensor([token for token in range(text.vocab_size) if token not in special])
    tokens = plain[torch.randint(len(plain), (batch_size, sequence))]
    if isinstance(end := getattr(text, "eos_token_id", None), int):
        tokens[:, -1] = end
    return tokens


def llama(
    batch_size: int = 1, *, size: Literal["tiny", "7b", "13b", "70b"] = "tiny", sequence: Count = 256
) -> Workload:
    """Llama 2 with 7, 13 or 70 billion parameters, for predictions; `tiny` is for trying things out.

    `sequence` is in tokens, at most 4096. The loss is that of the next token, the cache is off, the attention is
    PyTorch's. Raises Unsupported for a longer sequence.
    """
    if sequence > POSITIONS:
        raise Unsupported(f"sequence={sequence} is longer than the {POSITIONS} positions of Llama 2")
    kind: Any = transformers.LlamaConfig  # not all of its keywords are declared
    common = {"vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS, "tie_word_embeddings": False}
    settings = kind(**{**common, **SIZES[size]}, use_cache=False, attn_implementation="sdpa")
    tokens = torch.randint(settings.vocab_size, (batch_size, sequence))  # (batch, time)
    return Workload(
        module=transformers.LlamaForCausalLM(settings),
        blocks=tuple(f"model.layers.{number}" for number in range(settings.num_hidden_layers)),
        batch={"input_ids": tokens, "labels": tokens.clone()},
        loss=_own_loss,
    )
