"""Model families of transformers that have one of HEADS, built from their config, with a random batch that fits."""

from __future__ import annotations

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
    raise Unsupported("transformers is not installed: pip install 'gcprof[hf]'") from None

HEADS = {  # `auto` takes the first that a family has
    "speech": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING",
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING",
    "image": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    "classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
}
OWN_PIXELS = 224  # for families whose config has no image size: convolutional ones, which take any size


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
    chosen = _head(name, settings, head)
    if hasattr(settings, "image_size") and size.isdigit():
        settings.image_size = int(size)
    _mend(settings, chosen)
    module: nn.Module = _class(settings, chosen)(settings)
    inputs = batch(settings, chosen, batch_size, sequence=sequence, size=size)
    return Workload(module=module, batch=inputs, loss=_loss)


def _settings(name: str, config: dict[str, Any]) -> Any:
    """Return the family's config with these overrides."""
    families = list(CONFIG_MAPPING.keys())
    if name not in families:
        near = similar(name, families)
        raise Unsupported(
            f"transformers {transformers.__version__} has no family '{name}'"
            + (f"; the nearest is '{near[0]}'" if near else "")
        )
    kind = CONFIG_MAPPING[name]
    defaults = kind()
    for key in config:
        if not hasattr(defaults, key):
            near = similar(key, defaults.to_dict())
            raise Unsupported(f"hf:{name} has no '{key}'" + (f"; the nearest is '{near[0]}'" if near else ""))
    try:
        return kind(**config)
    except Exception as error:  # noqa: BLE001  each family checks its values in its own way
        raise Unsupported(f"hf:{name} refuses its config: {type(error).__name__}: {error}") from None


def _head(name: str, settings: Any, head: str) -> str:
    has = [word for word in HEADS if type(settings) in getattr(modeling_auto, HEADS[word])]
    if head == "auto" and has:
        return has[0]
    if head in has:
        return head
    words = f"it has {', '.join(has)}" if has else "nor any other that is known here"
    if head == "auto":
        raise Unsupported(f"hf:{name} has none of the heads {', '.join(HEADS)}")
    raise Unsupported(f"hf:{name} has no head '{head}'; {words}")


def _class(settings: Any, head: str) -> Any:
    model_class = getattr(modeling_auto, HEADS[head])[type(settings)]
    return model_class[0] if isinstance(model_class, tuple) else model_class


def _mend(settings: Any, head: str) -> None:
    """Adapt a config to training on whole sequences: no cache, and special tokens within the vocabulary."""
    settings.use_cache = False
    text = settings.get_text_config()
    if head == "seq2seq" and getattr(settings, "decoder_start_token_id", None) is None:
        settings.decoder_start_token_id = getattr(text, "pad_token_id", None)
    vocabulary = getattr(text, "vocab_size", None)
    if head == "classification" and getattr(text, "pad_token_id", None) is None:
        text.pad_token_id = 0  # else it is not known where a sequence ends
    for key in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        token = getattr(text, key, None)
        if vocabulary is not None and isinstance(token, int) and token >= vocabulary:
            setattr(text, key, vocabulary - 1)


def _loss(module: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    loss: torch.Tensor = module(**inputs).loss
    return loss


def batch(settings: Any, head: str, batch_size: int, *, sequence: int, size: str) -> dict[str, torch.Tensor]:
    """Return the keyword arguments of the model's forward, with labels. Raises Unsupported if a length does not fit."""
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


def _images(settings: Any, batch_size: int, size: str) -> dict[str, torch.Tensor]:
    if size != "own" and not (size.isascii() and size.isdigit() and int(size)):
        raise Unsupported(f"size={size} is not a number of pixels")
    own = getattr(settings, "image_size", OWN_PIXELS)
    height, width = own if isinstance(own, (list, tuple)) else (own, own)
    if size != "own":
        height = width = int(size)
    channels = getattr(settings, "num_channels", 3)
    images = torch.randn(batch_size, channels, height, width)
    return {"pixel_values": images, "labels": torch.randint(settings.num_labels, (batch_size,))}


def _speech(settings: Any, batch_size: int, sequence: int) -> dict[str, torch.Tensor]:
    """Return mel features, twice the encoder's length since its second convolution halves them, and a transcript."""
    if not hasattr(settings, "max_source_positions") or not hasattr(settings, "num_mel_bins"):
        raise Unsupported("the speech head has a batch for whisper's kind of features only")
    if sequence > settings.max_target_positions:
        raise Unsupported(f"sequence={sequence} is longer than the {settings.max_target_positions} positions")
    features = torch.randn(batch_size, settings.num_mel_bins, 2 * settings.max_source_positions)
    return {"input_features": features, "labels": _tokens(settings, batch_size, sequence)}
