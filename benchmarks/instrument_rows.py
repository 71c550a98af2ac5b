"""The rows of `benchmarks.instrument`: a covering array of strength 2 by arithmetic, the same one every time.

A row is a model under a strategy; every model meets every strategy that it can have. Precisions and devices are taken
in turn: there are three and four of them, which share no factor, so that their twelve pairs come round once in twelve
rows, and a model's eleven strategies meet all precisions and all devices, as a strategy's models do.
"""

from itertools import combinations, product

import msgspec

PRECISIONS = ("fp32", "bf16", "amp-bf16")
DEVICES = ("h100", "a100-40", "t4", "rtx-4090")
OPTIMIZERS = ("sgd", "adamw", "momentum")  # by model in turn
STRATEGIES = {  # by the strategy's name: the choices, which models have in turn
    "none": ("none",),
    "segments": ("segments:k=2", "segments:k=3,split=balanced", "segments:k=3"),
    "sqrt": ("sqrt",),
    "all": ("all",),
    "every": ("every:k=2",),
    "first": ("first:n=2",),
    "recursive": ("recursive",),
    "from-start": ("from-start",),
    "selective": ("selective:save=matmul", "selective:save=attention", "selective:save=conv"),
    "offload": ("offload",),
    "own": ("own",),
    "hf": ("hf",),  # of transformers' models alone
}
LEFT_OUT = {  # strategies that a bare loop cannot carry out in a few lines, and why
    "plan": "its segments come from a file that gcprof's solver writes; `just bench-plans` runs them",
    "compile-budget": "torch.compile chooses by itself what it recomputes, and its kernels are not run here",
}
HEAD = "num_hidden_layers=4,hidden_size=256,num_attention_heads=4,vocab_size=1000"
LLAMA = f"{HEAD},intermediate_size=688,num_key_value_heads=2"
STACKS = (
    "d_model=256,encoder_layers=2,decoder_layers=2,encoder_attention_heads=4,decoder_attention_heads=4,"
    "encoder_ffn_dim=1024,decoder_ffn_dim=1024,vocab_size=1000"
)
KINDS = (  # of benchmarks/unusual_modules.py
    *("video", "upsampling", "speech", "gated", "experts", "slots", "images", "fourier", "scan", "checkpointed"),
    *("cells", "function"),
)
# No RegNet of torchvision: it counts its depths with tensors, which have no values on the hollow device.
MODELS = {  # by kind: the model, and the batch
    "built-in": {
        "mlp:width=1024,depth=8": 8192,
        "dense-chain:widths=512+2048+512+64": 4096,
        "transformer:layers=4,width=256": 32,
        "mnist-cnn:channels=64,layers=12": 64,
        "cifar-resnet": 64,
        "llama": 8,
    },
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
    "transformers": {
        f"hf:bert:{HEAD},intermediate_size=1024": 16,
        "hf:distilbert:dim=256,hidden_dim=1024,n_layers=4,n_heads=4,vocab_size=1000": 16,
        f"hf:roberta:{HEAD},intermediate_size=1024": 16,
        "hf:gpt2:n_embd=256,n_layer=4,n_head=4,vocab_size=1000": 16,
        "hf:opt:hidden_size=256,ffn_dim=1024,num_hidden_layers=4,num_attention_heads=4,vocab_size=1000,"
        "word_embed_proj_dim=256": 16,
        f"hf:llama:{LLAMA}": 16,
        f"hf:mistral:{LLAMA}": 16,
        f"hf:qwen2:{LLAMA}": 16,
        "hf:t5:d_model=256,d_ff=1024,num_layers=2,num_decoder_layers=2,num_heads=4,vocab_size=1000": 16,
        f"hf:bart:{STACKS}": 16,
        "hf:vit:hidden_size=256,intermediate_size=1024,num_attention_heads=4,num_hidden_layers=4": 16,
        f"hf:whisper:{STACKS},max_source_positions=200": 16,
    },
    "other kinds": {f"benchmarks/unusual_modules.py:make:kind={kind}": 16 for kind in KINDS},
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One point at which what gcprof says is held to a bare loop."""

    kind: str
    model: str
    batch_size: int
    device: str = DEVICES[0]
    precision: str = "fp32"
    optimizer: str = "sgd"
    strategy: str = "none"  # the whole choice
    family: str = "none"  # the strategy's name

    def __str__(self) -> str:
        return f"{self.device} {self.model} b{self.batch_size} {self.precision} {self.optimizer} {self.strategy}"


def rows() -> list[Row]:
    """All rows, in the order of their models. Every pair of values of two factors is in one of them, or cannot be."""
    named = [(kind, model, batch) for kind, models in MODELS.items() for model, batch in models.items()]
    return [
        Row(
            kind=kind,
            model=model,
            batch_size=batch,
            device=DEVICES[(number + place) % len(DEVICES)],
            precision=PRECISIONS[(number + place) % len(PRECISIONS)],
            optimizer=OPTIMIZERS[number % len(OPTIMIZERS)],
            strategy=choices[number % len(choices)],
            family=family,
        )
        for number, (kind, model, batch) in enumerate(named)
        for place, (family, choices) in enumerate(STRATEGIES.items())
        if family != "hf" or _has_own_switch(model)
    ]


def not_covered(chosen: list[Row]) -> list[object]:
    """Return the pairs of values that meet in no row, except `hf` with models that have no such switch."""
    factors = [(row.model, row.precision, row.family, row.device) for row in chosen]
    values = [[model for models in MODELS.values() for model in models], PRECISIONS, STRATEGIES, DEVICES]
    pairs = [(one, other) for first, second in combinations(values, 2) for one, other in product(first, second)]
    met = {pair for row in factors for pair in combinations(row, 2)}
    cannot_be = {(model, "hf") for model in values[0] if not _has_own_switch(model)}
    return [pair for pair in pairs if pair not in met | cannot_be]


def _has_own_switch(model: str) -> bool:
    return model.startswith(("hf:", "llama"))
