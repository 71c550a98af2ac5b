"""One small model of every family, with and without checkpointing: writes docs/tables/models.md. Takes minutes.

Run it as `python -m tests.families`; with words, only the models whose names hold one of them are measured, and
the table is printed instead of written.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from profiler import __version__
from profiler.core.units import bytes_text, change_text
from profiler.training.assemble import summary
from tests.conftest import measured

DOCUMENT = Path(__file__).parent.parent / "docs" / "tables" / "models.md"
BATCH = 2
TINY = "vocab_size=100"
LLAMA = f"hidden_size=32,intermediate_size=64,num_attention_heads=2,num_hidden_layers=3,num_key_value_heads=1,{TINY}"
STACKS = (
    "d_model=32,encoder_layers=3,decoder_layers=3,encoder_attention_heads=2,decoder_attention_heads=2,"
    f"encoder_ffn_dim=64,decoder_ffn_dim=64,{TINY}"
)
TORCHVISION = (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3",
    "maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_x_400mf", "resnet18", "resnext50_32x4d",
    "shufflenet_v2_x0_5", "squeezenet1_1", "swin_t", "swin_v2_t", "vgg11", "vit_b_32", "wide_resnet50_2",
)  # fmt: skip
OWN_SIZE = ("inception_v3", "maxvit_t")  # which insist on it; the others train on 32 pixels
FAMILIES = (
    *(
        f"torchvision:{name}:{'' if name in OWN_SIZE else 'size=64,' if name == 'alexnet' else 'size=32,'}classes=10"
        for name in TORCHVISION
    ),
    f"hf:bert:hidden_size=32,intermediate_size=64,num_attention_heads=2,num_hidden_layers=3,{TINY}",
    f"hf:gpt2:n_embd=32,n_head=2,n_layer=3,{TINY}",
    f"hf:llama:{LLAMA}",
    f"hf:mistral:{LLAMA}",
    f"hf:mixtral:{LLAMA},num_local_experts=4",
    f"hf:qwen2:{LLAMA}",
    f"hf:t5:d_ff=64,d_kv=16,d_model=32,num_decoder_layers=3,num_heads=2,num_layers=3,{TINY}",
    f"hf:bart:{STACKS},max_position_embeddings=64",
    "hf:vit:hidden_size=32,intermediate_size=64,num_attention_heads=2,num_hidden_layers=3,patch_size=16,size=32",
    f"hf:whisper:{STACKS},max_source_positions=50,max_target_positions=64,num_mel_bins=16",
)
HEAD = """# Models that have been run

One small model of every family of `torchvision:` and some of `hf:`, measured on a CPU in fp32 at a batch of {batch},
without checkpointing and with `all`: every block by itself. `saved` is what the forward leaves live for the backward.
A change above 0 is no mistake: at these sizes the inputs that checkpoints keep, and the random state of 5056 bytes
beside each, may be more than what a block saves. Made by `python -m tests.families` with gcprof {version} and
torch {torch}.

| model | blocks | of class | saved | with `all` | gradients |
|---|--:|---|--:|--:|---|
"""


def row(model: str) -> str:
    """One line of the table."""
    none, every = (measured(model, word, batch_size=BATCH, passes=("equality", "memory")) for word in ("none", "all"))
    assert (none.outcome, every.outcome) == ("ok", "ok"), f"{model}: {none.detail or every.detail}"
    kinds = ", ".join(dict.fromkeys(block.kind for block in summary(none.case).blocks))
    saved, less = none.readings.saved_bytes or 0, every.readings.saved_bytes or 0
    equal = "equal to the bit" if every.equality and every.equality.gradients_equal else "equal within the noise"
    blocks = f"{none.built.num_blocks if none.built else '-'} | {kinds}"
    return f"| `{model}` | {blocks} | {bytes_text(saved)} | {change_text(less / saved)} | {equal} |\n"


def main(words: Sequence[str]) -> None:
    """Measure the families whose names hold one of the words, or all of them."""
    lines = []
    for model in FAMILIES:
        if not words or any(word in model for word in words):
            lines.append(row(model))
            print(lines[-1], end="", file=sys.stderr, flush=True)
    text = HEAD.format(batch=BATCH, version=__version__, torch=torch.__version__) + "".join(lines)
    if words:
        print(text)
    else:
        DOCUMENT.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
