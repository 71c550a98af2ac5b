"""The rows of `benchmarks.hollow`: every model once and a covering selection of all else, the same ones every time."""

from __future__ import annotations

from itertools import combinations, cycle, product

import msgspec

BASE_DEVICE = "h100"
DEVICES = (BASE_DEVICE, "a100-40", "t4")
PRECISIONS = ("fp32", "bf16", "amp-bf16", "amp-fp16")
OPTIMIZERS = ("sgd", "torch:AdamW:foreach=true", "torch:AdamW:fused=true", "torch:AdamW:foreach=false")
STRATEGIES = (
    *("none", "all", "segments:k=2", "segments:k=2,split=balanced", "sqrt", "every:k=2", "first:n=2", "recursive"),
    *("from-start", "selective:save=matmul", "selective:save=attention", "offload"),
)
OWN = ("hf",)  # of transformers' models alone
HEAD = "num_hidden_layers=2,hidden_size=256,num_attention_heads=4,vocab_size=1000"
LLAMA = f"{HEAD},intermediate_size=688,num_key_value_heads=2"
STACKS = (
    "d_model=256,encoder_layers=2,decoder_layers=2,encoder_attention_heads=4,decoder_attention_heads=4,"
    "encoder_ffn_dim=1024,decoder_ffn_dim=1024,vocab_size=1000"
)
# No RegNet of torchvision: it counts its depths with tensors, which have no values on the hollow device.
MODELS = {  # by kind: the model, and the batch
    "dense": {
        "mlp:width=1024,depth=8": 8192,
        "mlp": 64,
        "dense-chain:widths=512+2048+512+64": 4096,
        "transformer:layers=4,width=256": 32,
        "transformer:layers=2,width=512,vocabulary=8192": 16,
        "transformer:layers=2,width=384,heads=6,sequence=200,dropout=0": 24,
        "llama": 8,
    },
    "convolutional": {"mnist-cnn:channels=64": 64, "cifar-resnet": 64},
    "torchvision": {
        f"torchvision:{name}": 8
        for name in (
            *("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet"),
            *("inception_v3", "maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_large", "resnet34"),
            *("resnet18", "resnet50", "resnext50_32x4d", "shufflenet_v2_x1_0", "squeezenet1_1", "swin_t"),
            *("vgg11", "vit_b_16"),
        )
    },
    "timm": {
        f"timm:{name}": 8
        for name in (
            *("resnet18", "convnext_nano", "efficientnet_b0", "mobilenetv3_small_100", "vit_tiny_patch16_224"),
            *("swin_tiny_patch4_window7_224", "deit_tiny_patch16_224", "mixer_s32_224", "regnety_002", "ghostnet_100"),
        )
    },
    "transformers, tiny": {
        f"hf:bert:{HEAD},intermediate_size=1024": 16,
        "hf:distilbert:dim=256,hidden_dim=1024,n_layers=2,n_heads=4,vocab_size=1000": 16,
        f"hf:roberta:{HEAD},intermediate_size=1024": 16,
        "hf:gpt2:n_embd=256,n_layer=2,n_head=4,vocab_size=1000": 16,
        "hf:opt:hidden_size=256,ffn_dim=1024,num_hidden_layers=2,num_attention_heads=4,vocab_size=1000,"
        "word_embed_proj_dim=256": 16,
        f"hf:llama:{LLAMA}": 16,
        f"hf:mistral:{LLAMA}": 16,
        f"hf:qwen2:{LLAMA}": 16,
        "hf:t5:d_model=256,d_ff=1024,num_layers=2,num_decoder_layers=2,num_heads=4,vocab_size=1000": 16,
        f"hf:bart:{STACKS}": 16,
        "hf:vit:hidden_size=256,intermediate_size=1024,num_attention_heads=4,num_hidden_layers=2": 16,
        f"hf:whisper:{STACKS},max_source_positions=200": 16,
    },
    "transformers, full size": {
        "hf:bert:sequence=128": 16,
        "hf:distilbert:sequence=128": 16,
        "hf:roberta:sequence=128": 16,
        "hf:gpt2:sequence=256": 4,
        "hf:opt:sequence=128,ffn_dim=3072,hidden_size=768,num_hidden_layers=12,num_attention_heads=12": 8,
        "hf:llama:sequence=256,hidden_size=1024,intermediate_size=2816,num_hidden_layers=12,num_attention_heads=16,"
        "num_key_value_heads=16": 4,
        "hf:qwen2:sequence=256,hidden_size=896,intermediate_size=4864,num_hidden_layers=6,num_attention_heads=14,"
        "num_key_value_heads=2": 4,
        "hf:t5:sequence=128": 8,
        "hf:bart:sequence=128,encoder_layers=6,decoder_layers=6,d_model=768,encoder_ffn_dim=3072,"
        "decoder_ffn_dim=3072,encoder_attention_heads=12,decoder_attention_heads=12": 8,
        "hf:vit": 8,
        "hf:whisper": 4,
    },
}
NORMS = "norms copy their input before they make their results, the replay after: blocks are cut otherwise"
LIKELY = f"likely as Swin: {NORMS}"
CAUSES = {  # of rows beyond the bounds, by what stands in the model's name; others are not explained yet
    "swin_": NORMS,
    "maxvit": LIKELY,
    "convnext": LIKELY,
    "vit_b_16": LIKELY,
    "shufflenet": "a nested recompute makes three tensors more than its trace, and reserves 20 MiB for them",
    "resnet34": "bf16 before Ampere: convolutions ask for columns image by image, the trace asks once for all",
    "whisper": "23 requests as large as an activation are not in the trace; none of them is at the peak",
}
FACTORS = ("device", "kind", "precision", "optimizer", "strategy")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One point at which a prediction is held to PyTorch's own allocator."""

    kind: str
    model: str
    batch_size: int
    device: str = BASE_DEVICE
    precision: str = "fp32"
    optimizer: str = "sgd"
    strategy: str = "none"


def rows() -> list[Row]:
    """Each model under none, all and one more strategy; every model on every device; the covering selection."""
    return list(dict.fromkeys([*_each_model(), *_on_each_device(), *_covering()]))


def _each_model() -> list[Row]:
    found = []
    others = cycle(STRATEGIES[2:])
    for kind, models in MODELS.items():
        for model, batch in models.items():
            found += [
                Row(kind=kind, model=model, batch_size=batch, strategy=strategy)
                for strategy in ("none", "all", next(others))
            ]
    return found


def _on_each_device() -> list[Row]:
    """Every model on every device, with precision, optimizer and strategy in turn: of lengths that share no factor."""
    precisions, made, others = cycle(PRECISIONS), cycle((*OPTIMIZERS, "sgd")), cycle((*STRATEGIES, "all"))
    return [
        Row(
            kind=kind,
            model=model,
            batch_size=batch,
            device=device,
            precision=next(precisions),
            optimizer=next(made),
            strategy=next(others),
        )
        for kind, models in MODELS.items()
        for model, batch in models.items()
        for device in DEVICES
    ]


def _covering() -> list[Row]:
    """Rows in which every two values of every two factors meet, each the first that brings the most new pairs.

    The models of a kind take turns.
    """
    turns = {kind: cycle(models.items()) for kind, models in MODELS.items()}
    pairs_of = [(point, _pairs(point)) for point in _points()]
    wanted = set().union(*(pairs for _, pairs in pairs_of))
    found = []
    while wanted:
        best, pairs = max(pairs_of, key=lambda one: len(wanted & one[1]))
        wanted -= pairs
        model, batch = next(turns[best["kind"]])
        found.append(Row(model=model, batch_size=batch, **best))
    return found


def _points() -> list[dict[str, str]]:
    return [
        {"device": device, "kind": kind, "precision": precision, "optimizer": optimizer, "strategy": strategy}
        for device, kind, precision, optimizer in product(DEVICES, MODELS, PRECISIONS, OPTIMIZERS)
        for strategy in (*STRATEGIES, *(OWN if kind.startswith("transformers") else ()))
    ]


def _pairs(point: dict[str, str]) -> set[tuple[str, str, str, str]]:
    return {(one, point[one], other, point[other]) for one, other in combinations(FACTORS, 2)}
