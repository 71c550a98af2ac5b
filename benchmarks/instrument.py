"""What gcprof says of a step's bytes, held to plain PyTorch on the hollow device: `just bench-instrument`.

Each row is a step that gcprof rehearses, and the same step in a bare loop (`benchmarks.bare_loop`), whose checkpoints
are written by hand with torch.utils.checkpoint, in a process of its own. Peak, saved and reserved bytes are equal to
the byte, or the row's difference has a named cause; the run fails where one has none. Beside it stands how far the
estimate (fake tensors, as where there is no hollow device) is off. With `--layouts` the rows are modules of one
operator on inputs and gradients that are not contiguous. Writes its part of docs/tables/accuracy.md with -o.

The rows are a covering array of strength 2: every model meets every strategy that it can have, precisions and devices
in turn. There are three and four of these, so that their twelve pairs come round once in twelve rows.
"""

import multiprocessing
import random
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import accumulate, pairwise
from statistics import median
from typing import Any

import msgspec

from benchmarks import Row, made, parser, record, resumed, table, write
from profiler.core.gpu_specs import FAKE, REHEARSE
from profiler.core.record import Record
from profiler.engines.local import Local

PRECISIONS = ("fp32", "bf16", "amp-bf16")
DEVICES = ("h100", "a100-40", "t4", "rtx-4090")
OPTIMIZERS = ("sgd", "adamw", "momentum")  # by model in turn
STRATEGIES = (  # of each, the choices that models have in turn; the last is of transformers' models alone
    *(("none",), ("segments:k=2", "segments:k=3,split=balanced", "segments:k=3"), ("sqrt",), ("all",), ("every:k=2",)),
    *(("first:n=2",), ("recursive",), ("from-start",)),
    *(("selective:save=matmul", "selective:save=attention", "selective:save=conv"), ("offload",), ("own",), ("hf",)),
)
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
KINDS = "video upsampling speech gated experts slots images fourier scan checkpointed cells function"  # unusual ones
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
MODEL_LIBRARIES = ("torchvision.models", "timm", "transformers", *(
    f"transformers.models.{name}.modeling_{name}" for name in (words.partition(":")[0] for words in TRANSFORMERS)
))  # fmt: skip
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
READINGS = ("peak_bytes", "saved_bytes", "reserved_bytes")
MOST_MINUTES = 60.0
MOVED = "as of a loop that makes the model on the host and moves it: one segment of small blocks is filled otherwise"
HOLES = (
    "the steps allocate and free the same, one by one; making the batch leaves other holes in segments of small blocks"
)
CAUSES = {  # of rows that differ in reserved bytes alone, by what stands in their words
    "hf:bart a100-40 bf16 sgd every:k=2": MOVED,
    "hf:bart rtx-4090 bf16 sgd own": MOVED,
    "llama b8 rtx-4090 fp32 momentum own": HOLES,
}


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A row with what gcprof, the bare loop and the estimate say: bytes by reading, or why there are none."""

    row: Row
    rehearsed: dict[str, int] = {}
    truth: dict[str, int] = {}
    estimate: dict[str, int] = {}
    refused: str | None = None  # by gcprof
    failed: str | None = None

    @property
    def errors(self) -> tuple[float, ...]:
        """The error of each reading; none where there is no truth."""
        return tuple(self.error(name, self.rehearsed) for name in READINGS if self.truth)

    @property
    def guess(self) -> float | None:
        """The error of the estimate's peak."""
        return self.error("peak_bytes", self.estimate) if self.truth and self.estimate else None

    @property
    def is_exact(self) -> bool:
        """Whether all readings are equal to the byte."""
        return bool(self.truth) and not any(self.errors)

    @property
    def cause(self) -> str | None:
        """Why a row whose reserved bytes differ is known to differ."""
        if any(self.errors[:2]):
            return None
        return next((cause for words, cause in CAUSES.items() if all(w in str(self.row) for w in words.split())), None)

    @property
    def cells(self) -> tuple[str, ...]:
        if self.failed or self.refused:
            return f"failed: {self.failed}" if self.failed else f"refused: {self.refused}", str(self.row)
        told = "exact" if self.is_exact else "off by " + " ".join(f"{error:+.3%}" for error in self.errors)
        return told, "" if self.guess is None else f"estimate {self.guess:+.2%}", str(self.row)

    def error(self, name: str, said: dict[str, int]) -> float:
        """The difference from the truth as a fraction of it; of saved bytes, as a fraction of the peak if larger."""
        return (said[name] - self.truth[name]) / max(self.truth[name], self.truth["peak_bytes"] // 1000)


def main() -> int:
    arguments = parser(__doc__, "rows in which all of these stand: hf: t4", minutes=MOST_MINUTES)
    arguments.add_argument("--rows", type=int, help="so many, spread over all")
    arguments.add_argument("--layouts", action="store_true", help="operators on other layouts")
    asked = arguments.parse_args()
    if asked.layouts:
        from benchmarks.layouts import LAYOUTS, OPERATORS  # with torch

        models = [f"benchmarks/layouts.py:make:op={op},layout={layout}" for op in OPERATORS for layout in LAYOUTS]
        everything = [Row(model=model, batch_size=8) for model in models]
        left_out, keys = "", {"layout": lambda row: LAYOUTS[row.model.partition("layout=")[2]]}
    else:
        everything = rows()
        left_out = "".join(f"- `{name}` is left out: {why}.\n" for name, why in LEFT_OUT.items()) + "\n"
        keys = {"model": lambda row: row.model, "strategy": lambda row: row.strategy.partition(":")[0]}
    chosen = [row for row in everything if all(word in str(row) for word in asked.names)]
    random.Random(0).shuffle(chosen)  # so that a part of them is spread over all
    with Local(rehearses=True) as rehearsing, Local(measures=False) as plain:
        judged = resumed(chosen[: asked.rows], Judged, asked, partial(judge, rehearsing=rehearsing, estimating=plain))
    judged.sort(key=lambda one: everything.index(one.row))
    text = f"{made('instrument' + ' --layouts' * asked.layouts)}\n\n{_summary(judged)}\n{left_out}"
    text += "".join(_by(factor, judged, key) for factor, key in keys.items()) + _differing(judged)
    print(f"\n{text}")
    write(asked.output, "layouts" if asked.layouts else "rows", text)
    return int(any(one.failed or not (one.refused or one.is_exact or one.cause) for one in judged))


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
        for place, choices in enumerate(STRATEGIES)
        if choices != ("hf",) or model.startswith(("hf:", "llama"))  # which have such a switch
    ]


def judge(row: Row, rehearsing: Local, estimating: Local) -> Judged:
    """Rehearse the row, run its bare loop where it is not refused, and estimate it meanwhile."""
    with ThreadPoolExecutor() as pool:
        guess = pool.submit(record, estimating, row.case(FAKE + row.device))
        rehearsed = record(rehearsing, row.case(REHEARSE + row.device))
        truth = bare(row, _balanced(rehearsed)) if rehearsed.outcome != "skipped" else {}
        estimated = guess.result()
    if rehearsed.outcome == "skipped":
        return Judged(row=row, refused=rehearsed.detail)
    error = truth.get("error")
    if rehearsed.outcome != "ok" and error and error.partition(": ")[2][:40] in (rehearsed.detail or ""):
        return Judged(row=row, refused=f"plain PyTorch fails too: {rehearsed.detail}")
    failed = rehearsed.detail if rehearsed.outcome != "ok" else error
    if failed is None and rehearsed.built and rehearsed.built.num_blocks != truth.pop("num_blocks"):
        failed = f"the bare loop has other blocks than gcprof's {rehearsed.built.num_blocks}"
    if failed is not None:
        return Judged(row=row, failed=f"{rehearsed.outcome}: {failed}")
    said, estimate = (
        {name: getattr(found.readings, name) or 0 for name in READINGS if found.outcome == "ok"}
        for found in (rehearsed, estimated)
    )
    return Judged(row=row, rehearsed=said, truth=truth, estimate=estimate)


def bare(row: Row, segments: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the bytes of the row's step in a bare loop, in a new process; or the error that it raised, as `error`.

    `segments` of block numbers, where there are any, are checkpointed instead of those of the row's strategy.
    """
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["benchmarks.bare_loop", "benchmarks.instrument", "torch._dynamo", *MODEL_LIBRARIES])
    with ProcessPoolExecutor(1, forks) as pool:
        try:
            return pool.submit(_answer, {**msgspec.to_builtins(row), "segments": segments}).result()
        except BrokenProcessPool as error:
            return {"error": str(error)}


def _answer(row: dict[str, Any]) -> dict[str, Any]:
    from benchmarks import bare_loop

    return bare_loop.answer(row)


def _balanced(found: Record) -> list[list[int]]:
    """The checkpointed segments where gcprof cuts by bytes, so that the loop cuts alike; else none."""
    if "balanced" not in str(found.case.strategy) or not found.built or not found.built.split:
        return []
    counted = re.findall(r"(?:(\d+)x)?(\d+)\+", found.built.split)  # without the last, which is plain
    sizes = (int(size) for count, size in counted for _ in range(int(count or 1)))
    return [list(range(*ends)) for ends in pairwise(accumulate(sizes, initial=0))]


def _summary(judged: Sequence[Judged]) -> str:
    guesses = [abs(one.guess) for one in judged if one.guess is not None]
    exact, held = sum(one.is_exact for one in judged), sum(bool(one.truth) for one in judged)
    text = f"Of {len(judged)} rows {exact} are exact, {held - exact} differ, {sum(bool(one.refused) for one in judged)}"
    text += f" are refused and {sum(bool(one.failed) for one in judged)} failed."
    if guesses:
        text += f" The estimate's peak is off by {median(guesses):.2%} in the median and by {max(guesses):.1%} at worst"
        text += f" ({len(guesses)} rows)."
    return f"{text}\n"


def _by(factor: str, judged: Sequence[Judged], key: Callable[[Row], str]) -> str:
    lines = []
    for value in dict.fromkeys(key(one.row) for one in judged):
        own = [one for one in judged if key(one.row) == value]
        worst = [max(errors, key=abs) for errors in zip(*(one.errors for one in own if one.truth), strict=True)]
        guesses = [one.guess for one in own if one.guess is not None]
        cells = [f"{error:+.3%}" if error else "0" for error in worst or [0.0] * len(READINGS)]
        cells += [f"{median(map(abs, guesses)):.2%}", f"{max(guesses, key=abs):+.2%}"] if guesses else ["-", "-"]
        counts = len(own), sum(bool(one.refused) for one in own), sum(one.is_exact for one in own)
        lines.append((f"`{short(value)}`", *counts, *cells))
    head = f"{factor} | rows: | refused: | exact: | peak, worst: | saved: | reserved: | estimate, median: | worst:"
    return table(head, lines) + "\n"


def short(model: str) -> str:
    """A model's word, without options that make it too long for a table."""
    return model if len(model) < 60 else ":".join(model.split(":")[:2])


def _differing(judged: Sequence[Judged]) -> str:
    """The rows that differ, the farthest first, with their cause; and those that failed."""
    lines = []
    far = [one for one in judged if one.truth and not one.is_exact]
    for one in sorted(far, key=lambda one: -max(map(abs, one.errors))):
        row = one.row
        words = f"`{short(row.model)}`, {row.device}, {row.precision}, {row.optimizer}, `{row.strategy}`"
        lines.append((words, *(f"{error:+.3%}" for error in one.errors), one.cause or "not found"))
    text = table("differing row | peak: | saved: | reserved: | cause", lines)
    return text + "".join(f"\n- `{one.row}`: {one.failed}" for one in judged if one.failed)
