"""Training steps in plain PyTorch on the hollow device: the truth that `benchmarks.instrument` holds gcprof to.

Of gcprof it uses what opens the device, and the modules of the built-in models; batches, losses, blocks, checkpoints,
precision, optimizer and step are written here, as docs/strategies.md and docs/how-it-works.md say them.

The protocol: model and batch are made on the device, batch and model are cast, one step settles gradients and optimizer
state, and the next one is read. No values are computed there, so that `all()` is taken as true, as for whole sequences.
"""

import importlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial, reduce
from itertools import accumulate, pairwise
from math import sqrt
from typing import Any

from profiler.rehearsal import device as hollow

if "torch" not in sys.modules:  # else its first importer has said on which device
    hollow.load()

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.nn import functional as F
from torch.utils import checkpoint as checkpoints
from torch.utils._pytree import tree_leaves

warnings.simplefilter("ignore")
BLOCKS = {  # containers (before a slash) whose children are the blocks, plain Sequentials opened; of models
    "/": "mlp dense-chain",
    "features/": "alexnet convnext_tiny densenet121 torchvision:efficientnet_b0 efficientnet_v2_s mobilenet_v"
    " squeezenet torchvision:swin_t vgg11",
    "blocks/": "transformer unusual_modules maxvit_t timm:efficientnet_b0 mobilenetv3_small vit_tiny deit_tiny mixer"
    " ghostnet",
    "stages/": "cifar-resnet convnext_nano",
    "layers/": "mnasnet0_5 swin_tiny",
    "model.layers/": "llama hf:mistral hf:qwen2",
    "trunk/": "mnist-cnn",
    "/convolution": "layouts",  # the children of which the names begin so
    "/conv+maxpool+inception": "googlenet",
    "/Conv2d+maxpool+Mixed": "inception_v3",
    "layer1/ layer2/ layer3/ layer4/": "resne",
    "stage2/ stage3/ stage4/": "shufflenet",
    "encoder.layers/": "vit_b_16",
    "/s": "regnety_002",
    "bert.encoder.layer/": "hf:bert",
    "distilbert.transformer.layer/": "hf:distilbert",
    "roberta.encoder.layer/": "hf:roberta",
    "transformer.h/": "hf:gpt2",
    "model.decoder.layers/": "hf:opt",
    "encoder.block/ decoder.block/": "hf:t5",
    "vit.layers/": "hf:vit",
    "model.encoder.layers/ model.decoder.layers/": "hf:bart hf:whisper",
}
AUXILIARY = {"googlenet": 0.3, "inception_v3": 0.4}  # of each auxiliary loss, as they were trained
HEADS = {
    **dict.fromkeys(("bert", "distilbert", "roberta"), "AutoModelForMaskedLM"),
    **dict.fromkeys(("t5", "bart"), "AutoModelForSeq2SeqLM"),
    "vit": "AutoModelForImageClassification",
    "whisper": "AutoModelForSpeechSeq2Seq",
}  # all others are causal
LLAMA = {  # `llama`, size=tiny
    **{"vocab_size": 256, "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 4},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096},
    "tie_word_embeddings": False,
}
KEPT = {  # operators whose results a selective checkpoint keeps
    "matmul": ("mm", "addmm", "bmm", "baddbmm"),
    "conv": ("convolution",),
    "attention": ("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
}


def answer(row: dict[str, Any]) -> dict[str, Any]:
    """Return the bytes of the row's step, in a process of its own; or, as `error`, what it raised."""
    torch.Tensor.all = _passing(torch.Tensor.all)
    if masks := sys.modules.get("transformers.masking_utils"):
        masks.fast_all = _passing(masks.fast_all)  # type: ignore[attr-defined]  # the same test, as a sum
    try:
        hollow.choose(f"rehearse:{row['device']}")
        blocks, step = prepared(row)
        step()
        torch.cuda.reset_peak_memory_stats()
        saved = step()
    except Exception as error:  # noqa: BLE001  a model may raise anything
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
    return {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "saved_bytes": saved,
        "reserved_bytes": torch.cuda.max_memory_reserved(),  # what the allocator holds at most
        "num_blocks": len(blocks),
    }


def prepared(row: dict[str, Any], device: str = "cuda") -> tuple[list[nn.Module], Callable[[], int]]:
    """Return the blocks of the row's module, and a step, which returns the bytes that the forward saves."""
    with torch.device(device):
        module, batch, loss = built(row["model"], row["batch_size"])
    if row["precision"] == "bf16":
        as_made, batch = batch, [x.to(torch.bfloat16) if x.is_floating_point() else x for x in batch]
        module = module.to(torch.bfloat16)
        del as_made  # as long as the model is cast
    module.train()
    blocks = blocks_of(module, row["model"])
    around = apply(module, blocks, row["strategy"], row.get("segments", ()))
    optimizer = {
        "sgd": partial(torch.optim.SGD, lr=0.01),
        "momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        "adamw": partial(torch.optim.AdamW, lr=0.001),
    }[row["optimizer"]](module.parameters())
    cast = torch.autocast(device, torch.bfloat16) if row["precision"] == "amp-bf16" else nullcontext()

    def call(*given: Any, **named: Any) -> Any:
        with around:
            return module(*given, **named)

    def step() -> int:
        optimizer.zero_grad()
        before = torch.cuda.memory_allocated()
        with cast:
            value = loss(call, batch)
        saved = torch.cuda.memory_allocated() - before
        value.backward()
        optimizer.step()
        return saved

    return blocks, step


def _passing(every: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a `Tensor.all` that is true of a CUDA tensor, and takes what it takes."""

    def passed(tensor: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
        out = every(tensor, *arguments, **named)
        return out if arguments or named or not tensor.is_cuda else torch.ones((), dtype=torch.bool, device="cpu")

    return passed


def built(model: str, batch_size: int) -> tuple[nn.Module, list[torch.Tensor], Callable[..., torch.Tensor]]:
    """Return the module, its batch, and its loss, a function of the module's call and the batch."""
    name, options = _parsed(model)
    library, _, rest = name.partition(":")
    if library == "torchvision":
        from torchvision import models

        more = {"init_weights": False} if rest in AUXILIARY else {}
        module = models.get_model(rest, weights=None, num_classes=1000, **more)
        return _images(module, batch_size, 299 if rest == "inception_v3" else 224, AUXILIARY.get(rest, 0.0))
    if library == "timm":
        import timm

        return _images(timm.create_model(rest, pretrained=False, num_classes=1000), batch_size, 224, 0.0)
    if library in ("hf", "llama"):
        return _transformers(rest or library, options, batch_size)
    if ".py" in name:
        file = importlib.import_module(name.partition(".py")[0].replace("/", "."))
        module, batch, *given = file.make(**options, batch_size=batch_size)
        return module, list(batch), lambda call, batch: given[0](call(batch[0]), batch[1]) if given else call(*batch)
    return _built_in(name, options, batch_size)


def _parsed(words: str) -> tuple[str, dict[str, str]]:
    name, _, options = words.rpartition(":")
    return (name, dict(word.split("=") for word in options.split(","))) if "=" in options else (words, {})


def _images(module: nn.Module, batch_size: int, pixels: int, auxiliary: float) -> Any:
    images, labels = torch.randn(batch_size, 3, pixels, pixels), torch.randint(1000, (batch_size,))

    def loss(call: Any, batch: list[torch.Tensor]) -> torch.Tensor:
        output = call(batch[0])
        main, *others = (output,) if isinstance(output, torch.Tensor) else output
        value = F.cross_entropy(main, batch[1])
        for logits in others:
            value = value + auxiliary * F.cross_entropy(logits, batch[1])
        return value

    return module, [images, labels], loss


def _transformers(family: str, options: dict[str, str], batch_size: int) -> Any:
    import transformers

    sizes = {key: int(value) for key, value in options.items()} or LLAMA
    config: Any = transformers.CONFIG_MAPPING[family](**sizes)
    config.use_cache = False
    for name in ("pad", "bos", "eos", "decoder_start"):  # within a vocabulary that was made smaller
        token = getattr(config, f"{name}_token_id", None)
        if isinstance(token, int) and token >= getattr(config, "vocab_size", token + 1):
            setattr(config, f"{name}_token_id", config.vocab_size - 1)
    if family == "t5":
        config.decoder_start_token_id = config.pad_token_id
    module = getattr(transformers, HEADS.get(family, "AutoModelForCausalLM")).from_config(config)
    if family == "vit":
        named = {"pixel_values": torch.randn(batch_size, 3, 224, 224), "labels": torch.randint(2, (batch_size,))}
    elif family == "whisper":
        features = torch.randn(batch_size, config.num_mel_bins, 2 * config.max_source_positions)
        named = {"input_features": features, "labels": torch.randint(5, 900, (batch_size, 64))}
    else:
        plain = torch.tensor(range(5, config.vocab_size - 1))  # tokens that are not special
        tokens = plain[torch.randint(len(plain), (batch_size, 64 if options else 256))]
        named = {"input_ids": tokens, "labels": tokens.clone()}
    names = list(named)  # alone: the batch may be cast
    return module, list(named.values()), lambda call, batch: call(**dict(zip(names, batch, strict=True))).loss


def _built_in(name: str, options: dict[str, str], batch_size: int) -> Any:
    from profiler.training.models import built_in

    number = {key: int(value) for key, value in options.items() if value.isdigit()}
    if name == "mlp":
        sizes = [10, *[number["width"]] * (number["depth"] - 1), 5]
        layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
        module: nn.Module = nn.Sequential(*layers[:-1])
        batch = [torch.randn(batch_size, 10), torch.randint(5, (batch_size,))]
    elif name == "dense-chain":
        sizes = [8, *map(int, options["widths"].split("+"))]
        module = nn.Sequential(*(built_in.Dense(*pair) for pair in pairwise(sizes)))
        return module, [torch.randn(batch_size, 8)], lambda call, batch: call(batch[0]).sum()
    elif name == "transformer":
        module = built_in.Transformer(number["layers"], number["width"], 4, 128, 512, 0.1)
        tokens = torch.randint(512, (batch_size, 129))
        batch = [tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()]
        return module, batch, lambda call, batch: F.cross_entropy(call(batch[0]).flatten(0, 1), batch[1].flatten())
    elif name == "mnist-cnn":
        batch = [torch.rand(batch_size, 1, 28, 28), torch.randint(10, (batch_size,))]
        module = built_in.MnistCnn(number["channels"], number["layers"])
    else:
        module = built_in.CifarResNet(3, 10)
        batch = [torch.randn(batch_size, 3, 32, 32), torch.randint(10, (batch_size,))]
    return module, batch, lambda call, batch: F.cross_entropy(call(batch[0]), batch[1])


def blocks_of(module: nn.Module, model: str) -> list[nn.Module]:
    """Return the blocks of a model, in the order in which they are called."""

    def opened(container: nn.Module, starts: str = "") -> Iterator[nn.Module]:
        for name, child in container.named_children():
            if name.startswith(tuple(starts.split("+"))):
                yield from opened(child) if type(child) is nn.Sequential else [child]

    words = next(words for words, models in BLOCKS.items() if any(name in model for name in models.split()))
    parts = [word.partition("/") for word in words.split()]
    return [block for name, _, starts in parts for block in opened(module.get_submodule(name), starts)]


def apply(module: Any, blocks: list[nn.Module], strategy: str, given: Sequence[Any]) -> AbstractContextManager[Any]:
    """Apply the strategy, or checkpoint the given segments; return what is to be around every call of the module."""
    name, options = _parsed(strategy)
    number, every = len(blocks), range(len(blocks))
    if name != "own" and hasattr(module, "is_checkpointed"):
        module.is_checkpointed = False
    if name == "offload":
        return save_on_cpu(pin_memory=True)
    if name == "hf":
        module.gradient_checkpointing_enable({"use_reentrant": False})
    under = partial(checkpoints.checkpoint, use_reentrant=False)
    if name == "selective":
        operators = [getattr(torch.ops.aten, word).default for word in KEPT[options["save"]]]
        under = partial(under, context_fn=partial(checkpoints.create_selective_checkpoint_contexts, operators))
    each, size, first = [[index] for index in every], int(options.get("k", 1)), int(options.get("n", 0))
    count = max(1, round(sqrt(number))) if name == "sqrt" else size
    sizes = [number // count] * (count - 1)  # all but the last, which takes the remainder
    consecutive = [list(every[begin:end]) for begin, end in pairwise(accumulate(sizes, initial=0))]
    segments: dict[str, list[Any]] = {
        "all": each,
        "selective": each,
        "every": each[size - 1 :: size],
        "first": each[:first],
        "segments": consecutive,
        "sqrt": consecutive,
        "recursive": [item for item in _halves(list(every)) if isinstance(item, list)],
        # each block after all blocks before it, which are a segment
        "from-start": [reduce(lambda before, block: [before, block], every[1:-1], [0])] if number > 1 else [],
    }
    forwards = [block.forward for block in blocks]
    for segment in given or segments.get(name, ()):
        first, *others = tree_leaves(segment)
        blocks[first].forward = _checkpointed(blocks, forwards, segment, under)
        for index in others:
            blocks[index].forward = lambda value, *more, **named: value
    return nullcontext()


def _halves(indices: list[int]) -> list[Any]:
    """The first half as a segment of its own halves, and then the second half's."""
    middle = len(indices) // 2
    return [_halves(indices[:middle]), *_halves(indices[middle:])] if middle else indices


def _checkpointed(blocks: list[Any], forwards: list[Any], segment: list[Any], under: Callable[..., Any]) -> Any:
    """Return the segment under a checkpoint, as its first block's forward; its others return what they are given."""
    begin = blocks[tree_leaves(segment)[0]]
    if getattr(begin, "inplace", False):
        begin.inplace = False  # a recompute needs what an in-place ReLU at its start was given
    parts = [_checkpointed(blocks, forwards, at, under) if isinstance(at, list) else forwards[at] for at in segment]

    def compute(value: Any, *more: Any, **named: Any) -> Any:
        for part in parts:
            value = part(value, *more, **named)
        return value

    return partial(under, compute)
