"""One small model of every family, with and without checkpointing: writes docs/tables/models.md. Takes minutes.

Run it as `python -m tests.families`; with words, only the models whose names hold one of them are measured, and
the table is printed instead of written.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from profiler import __version__
from profiler.core import catalogue
from profiler.core.case import Case, Choice, Trial, encode
from profiler.core.record import Record
from profiler.core.units import bytes_text, change_text
from profiler.engines.local import Local
from profiler.training import models
from tests.program import PATIENCE_SECONDS

DOCUMENT = Path(__file__).parent.parent / "docs" / "tables" / "models.md"
BATCH = 2
PASSES = ("equality", "memory")
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
HUGGING_FACE = (
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
FAMILIES = (
    *(
        f"torchvision:{name}:{'' if name in OWN_SIZE else 'size=64,' if name == 'alexnet' else 'size=32,'}classes=10"
        for name in TORCHVISION
    ),
    *HUGGING_FACE,
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


def measure(model: str, engine: Local) -> tuple[Record, Record]:
    """The records of `none` and of `all`."""
    case = Case(
        model=catalogue.resolve(Choice(model), models.TABLE),
        strategy=Choice("none"),
        optimizer=Choice("sgd"),
        batch_size=BATCH,
        device="cpu",
    )
    (none,) = engine.run([Trial(case=case, passes=PASSES)])
    every = msgspec.structs.replace(case, strategy=Choice("all"))
    digests = none.equality.digests if none.equality else None
    (checkpointed,) = engine.run([Trial(case=every, passes=PASSES, digests=digests)])
    return none, checkpointed


def classes(record: Record, engine: Local) -> str:
    """The classes of a model's blocks, each once."""
    told = engine.ask("profiler.engines.worker:outline", encode(record.case).decode(), failing=record.case.model)
    return ", ".join(dict.fromkeys(block["kind"] for block in told["outline"]["blocks"]))


def row(model: str, none: Record, checkpointed: Record, kinds: str) -> str:
    """One line of the table."""
    for record in (none, checkpointed):
        if record.outcome != "ok":
            return f"| `{model}` | - | - | - | - | {record.case.strategy}: {record.outcome}: {record.detail} |\n"
    assert none.built, "an ok record says what was built"
    assert checkpointed.equality, "and was compared"
    saved, less = none.readings.saved_bytes, checkpointed.readings.saved_bytes
    assert saved, "the memory pass ran"
    assert less, "the memory pass ran"
    equal = "equal to the bit" if checkpointed.equality.gradients_equal else "equal within the noise"
    blocks = f"{none.built.num_blocks} | {kinds}"
    return f"| `{model}` | {blocks} | {bytes_text(saved)} | {change_text(less / saved)} | {equal} |\n"


def main(words: Sequence[str]) -> int:
    """Measure the families whose names hold one of the words, or all of them; 1 where one is not ok, else 0."""
    chosen = [model for model in FAMILIES if not words or any(word in model for word in words)]
    lines = []
    torch = None
    outcomes = set()
    with Local(stage_seconds=PATIENCE_SECONDS) as engine:
        for model in chosen:
            none, checkpointed = measure(model, engine)
            outcomes |= {none.outcome, checkpointed.outcome}
            torch = none.environment.torch if none.environment else torch
            kinds = classes(none, engine) if none.outcome == "ok" else ""
            lines.append(row(model, none, checkpointed, kinds))
            print(lines[-1], end="", file=sys.stderr, flush=True)
    text = HEAD.format(batch=BATCH, version=__version__, torch=torch) + "".join(lines)
    if words:
        print(text)
    else:
        DOCUMENT.parent.mkdir(exist_ok=True)
        DOCUMENT.write_text(text)
    return int(outcomes != {"ok"})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
