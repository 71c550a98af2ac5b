"""Training steps in plain PyTorch on the hollow device: the truth that `benchmarks.instrument` holds gcprof to.

Of gcprof it uses what opens the device, and the modules of the built-in models; batches, losses, blocks, checkpoints,
precision, optimizer and step are written here, as docs/strategies.md and docs/how-it-works.md say them.

The protocol: model and batch are made on the device, batch and model are cast, one step settles gradients and optimizer
state, and the next one is read. No values are computed there, so that `all()` is taken as true, as for whole sequences.
"""

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain, pairwise
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
BLOCKS = {  # modules, and containers (with a slash) whose children are the blocks, plain Sequentials opened; of models
    "/": "mlp dense-chain",
    "features/": "alexnet convnext_tiny densenet121 torchvision:efficientnet_b0 efficientnet_v2_s mobilenet_v"
    " squeezenet torchvision:swin_t vgg11",
    "blocks/": "transformer unusual_modules maxvit_t timm:efficientnet_b0 mobilenetv3_small vit_tiny deit_tiny mixer"
    " ghostnet",
    "stages/": "cifar-resnet convnext_nano",
    "layers/": "mnasnet0_5 swin_tiny",
    "model.layers/": "llama hf:mistral hf:qwen2",
    "trunk/": "mnist-cnn",
    "convolution": "layouts",
    "conv1 maxpool1 conv2 conv3 maxpool2 inception3a inception3b maxpool3 inception4a inception4b inception4c"
    " inception4d inception4e maxpool4 inception5a inception5b": "googlenet",
    "Conv2d_1a_3x3 Conv2d_2a_3x3 Conv2d_2b_3x3 maxpool1 Conv2d_3b_1x1 Conv2d_4a_3x3 maxpool2 Mixed_5b"
    " Mixed_5c Mixed_5d Mixed_6a Mixed_6b Mixed_6c Mixed_6d Mixed_6e Mixed_7a Mixed_7b Mixed_7c": "inception_v3",
    "layer1/ layer2/ layer3/ layer4/": "resne",
    "stage2/ stage3/ stage4/": "shufflenet",
    "encoder.layers/": "vit_b_16",
    "stem s1 s2 s3 s4": "regnety_002",
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
        return run(row)
    except Exception as error:  # noqa: BLE001  a model may raise anything
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}


def prepared(row: dict[str, Any], device: str = "cuda") -> tuple[nn.Module, list[nn.Module], Callable[[], int]]:
    """Return the row's module, its blocks, and a step, which returns the bytes that the forward saves."""
    with torch.device(device):
        module, batch, loss = built(row["model"], row["batch_size"])
    if row["precision"] == "bf16":
        as_made, batch = batch, [x.to(torch.bfloat16) if x.is_floating_point() else x for x in batch]
        module = module.to(torch.bfloat16)
        del as_made  # as long as the model is cast
    module.train()
    blocks = blocks_of(module, row["model"])
    around = apply(module, blocks, row["strategy"], row.get("sizes", ()), row.get("segments", ()))
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

    return module, blocks, step


def run(row: dict[str, Any]) -> dict[str, int]:
    """Return the bytes of one step: its peak, what the forward saves, and what the allocator holds at most."""
    _module, blocks, step = prepared(row)
    step()
    torch.cuda.reset_peak_memory_stats()
    saved = step()
    return {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "saved_bytes": saved,
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "num_blocks": len(blocks),
    }


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

    def opened(container: nn.Module) -> list[nn.Module]:
        inner = ((opened(child) if type(child) is nn.Sequential else [child]) for child in container.children())
        return list(chain.from_iterable(inner))

    words = next(words for words, models in BLOCKS.items() if any(name in model for name in models.split()))
    parts = [(word.endswith("/"), module.get_submodule(word.removesuffix("/"))) for word in words.split()]
    return list(chain.from_iterable(opened(part) if is_container else [part] for is_container, part in parts))


def apply(
    module: Any, blocks: list[nn.Module], strategy: str, sizes: Sequence[int] = (), given: Sequence[list[int]] = ()
) -> AbstractContextManager[Any]:
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
    segments: dict[str, list[Any]] = {
        "all": each,
        "selective": each,
        "every": each[size - 1 :: size],
        "first": each[:first],
        "segments": _consecutive(sizes or _equal(number, size)),
        "sqrt": _consecutive(_equal(number, max(1, round(sqrt(number))))),
        "recursive": [item for item in _halves(list(every)) if isinstance(item, list)],
        "from-start": [_before(number - 1)] if number > 1 else [],
    }
    for segment in given or segments.get(name, ()):
        _checkpoint(blocks, segment, under)
    return nullcontext()


def _equal(number: int, count: int) -> list[int]:
    """The sizes of the segments that are checkpointed: all but the last, which takes the remainder."""
    return [number // count] * (count - 1)


def _consecutive(sizes: Sequence[int]) -> list[list[int]]:
    return [list(range(sum(sizes[:place]), sum(sizes[: place + 1]))) for place in range(len(sizes))]


def _halves(indices: list[int]) -> list[Any]:
    """The first half as a segment of its own halves, and then the second half's."""
    middle = len(indices) // 2
    return [_halves(indices[:middle]), *_halves(indices[middle:])] if middle else indices


def _before(number: int) -> list[Any]:
    """Each block after all blocks before it, which are a segment."""
    return [_before(number - 1), number - 1] if number > 1 else [0]


def _checkpoint(blocks: list[nn.Module], segment: list[Any], under: Callable[..., Any]) -> None:
    """Compute the segment where its first block is called; its other blocks return what they are given."""
    forwards = [block.forward for block in blocks]

    def compute(items: list[Any], value: Any, *more: Any, **named: Any) -> Any:
        for item in items:
            run = partial(under, partial(compute, item)) if isinstance(item, list) else forwards[item]
            value = run(value, *more, **named)
        return value

    for inner in _segments_in(segment):  # a recompute needs what an in-place ReLU at its start was given
        begin = blocks[tree_leaves(inner)[0]]
        if getattr(begin, "inplace", False):
            begin.inplace = False
    first, *others = tree_leaves(segment)
    blocks[first].forward = partial(under, partial(compute, segment))
    for index in others:
        blocks[index].forward = lambda value, *more, **named: value


def _segments_in(segment: list[Any]) -> list[list[Any]]:
    return [segment, *(each for item in segment if isinstance(item, list) for each in _segments_in(item))]
