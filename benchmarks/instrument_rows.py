"""The rows of `benchmarks.instrument`: a covering array of strength 2 by arithmetic, the same one every time.

A row is a model under a strategy; every model meets every strategy that it can have. Precisions and devices are taken
in turn: there are three and four of them, which share no factor, so that their twelve pairs come round once in twelve
rows, and a model's eleven strategies meet all precisions and all devices, as a strategy's models do.
"""

from benchmarks import Row

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
    "video upsampling speech gated experts slots images fourier scan checkpointed cells function"
)
TORCHVISION = (  # no RegNet: it counts its depths with tensors, which have no values on the hollow device
    "alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5"
    " mobilenet_v2 mobilenet_v3_large resnet34 resnet18 resnet50 resnext50_32x4d shufflenet_v2_x1_0 squeezenet1_1"
    " swin_t vgg11 vit_b_16"
)
TIMM = (
    "resnet18 convnext_nano efficientnet_b0 mobilenetv3_small_100 vit_tiny_patch16_224 swin_tiny_patch4_window7_224"
    " deit_tiny_patch16_224 mixer_s32_224 regnety_002 ghostnet_100"
)
TRANSFORMERS = (
    f"bert:{HEAD},intermediate_size=1024",
    "distilbert:dim=256,hidden_dim=1024,n_layers=4,n_heads=4,vocab_size=1000",
    f"roberta:{HEAD},intermediate_size=1024",
    "gpt2:n_embd=256,n_layer=4,n_head=4,vocab_size=1000",
    "opt:hidden_size=256,ffn_dim=1024,num_hidden_layers=4,num_attention_heads=4,vocab_size=1000,"
    "word_embed_proj_dim=256",
    *(f"{family}:{LLAMA}" for family in ("llama", "mistral", "qwen2")),
    "t5:d_model=256,d_ff=1024,num_layers=2,num_decoder_layers=2,num_heads=4,vocab_size=1000",
    f"bart:{STACKS}",
    "vit:hidden_size=256,intermediate_size=1024,num_attention_heads=4,num_hidden_layers=4",
    f"whisper:{STACKS},max_source_positions=200",
)
MODELS = {  # with their batches
    "mlp:width=1024,depth=8": 8192,
    "dense-chain:widths=512+2048+512+64": 4096,
    "transformer:layers=4,width=256": 32,
    "mnist-cnn:channels=64,layers=12": 64,
    "cifar-resnet": 64,
    "llama": 8,
    **{f"torchvision:{name}": 8 for name in TORCHVISION.split()},
    **{f"timm:{name}": 8 for name in TIMM.split()},
    **{f"hf:{words}": 16 for words in TRANSFORMERS},
    **{f"benchmarks/unusual_modules.py:make:kind={kind}": 16 for kind in KINDS.split()},
}


def rows() -> list[Row]:
    """All rows, in the order of their models. Every pair of values of two factors is in one of them, or cannot be."""
    return [
        Row(
            model=model,
            batch_size=batch,
            device=DEVICES[(number + place) % len(DEVICES)],
            precision=PRECISIONS[(number + place) % len(PRECISIONS)],
            optimizer=OPTIMIZERS[number % len(OPTIMIZERS)],
            strategy=choices[number % len(choices)],
        )
        for number, (model, batch) in enumerate(MODELS.items())
        for place, (family, choices) in enumerate(STRATEGIES.items())
        if family != "hf" or model.startswith(("hf:", "llama"))  # which have such a switch
    ]
