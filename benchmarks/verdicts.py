"""Models that others wrote, held to plain PyTorch: `just bench-verdicts`. Takes half an hour.

60 families of timm and transformers and 25 models of torchvision, tiny, at a batch of two on the CPU: what gcprof says
of the gradients of `none`, `all` and `sqrt`, and what two plain runs of two steps, and one with the same blocks under
`torch.utils.checkpoint` by hand, say of them. Fails where they differ. Writes docs/verdicts.md; with
words, only models whose names hold one of them are compared, and their rows written anew.
"""

from __future__ import annotations

import os
import random
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from profiler.analysis.rows import verdict
from profiler.core import catalogue
from profiler.core.case import Case, Choice, Trial
from profiler.core.errors import UserError
from profiler.core.record import Record
from profiler.engines.local import Local
from profiler.training import models

DOCUMENT = Path(__file__).parents[1] / "docs" / "verdicts.md"
STRATEGIES = ("none", "all", "sqrt")
CELL = re.compile(r" (?<!\\)\| ")  # what is between two cells
WRONG = "wrong:"
EQUAL = {"bit-equal", "within noise"}
LIMIT_SECONDS = 900.0  # of one model on a busy machine
SAID_OF = {"GCP004": "buffers", "GCP005": "random numbers", "GCP044": "nothing repeats", "GCP045": "no gradient"}
TIMM = {  # the side of the images; None: the model's own, which it insists on
    "resnet10t": 32,
    "resnetv2_18": 32,
    "regnetx_002": 32,
    "regnety_002": 32,
    "efficientnet_lite0": 32,
    "mobilenetv3_small_050": 32,
    "lcnet_035": 32,
    "ghostnet_050": 32,
    "convnextv2_atto": 32,
    "convit_tiny": 64,
    "deit_tiny_distilled_patch16_224": 32,
    "vit_tiny_patch16_224": 32,
    "edgenext_xx_small": 64,
    "efficientformerv2_s0": 64,
    "fastvit_t8": 64,
    "hgnetv2_b0": 64,
    "inception_next_atto": 32,
    "levit_128s": 64,
    "mambaout_femto": 32,
    "poolformer_s12": 64,
    "mixer_s32_224": 64,
    "mobilevit_xxs": 64,
    "mobilevitv2_050": 64,
    "pit_ti_224": 64,
    "pvt_v2_b0": 64,
    "repvit_m0_9": 64,
    "rexnetr_100": 32,
    "dla46_c": 32,
    "tiny_vit_5m_224": 64,
    "xcit_nano_12_p16_224": 64,
    "visformer_tiny": 64,
}
HUGGING_FACE = {  # options besides those of SMALL
    "albert": "",
    "bert": "",
    "big_bird": "block_size=4,num_random_blocks=1,sequence=64",
    "convbert": "",
    "deberta": "",
    "distilbert": "",
    "electra": "",
    "fnet": "",
    "megatron-bert": "",
    "mobilebert": "",
    "mpnet": "",
    "nystromformer": "",
    "roformer": "",
    "squeezebert": "",
    "xlnet": "",
    "bloom": "",
    "gemma2": "",
    "gpt2": "",
    "gpt_neox": "",
    "llama": "",
    "mamba": "",
    "mixtral": "num_local_experts=4",
    "mpt": "",
    "opt": "layerdrop=0.3",
    "qwen3": "",
    "rwkv": "",
    "bart": "",
    "m2m_100": "",
    "t5": "",
    "switch_transformers": "",
    "beit": "size=32",
    "dinov2": "size=32",
    "vit": "size=32",
}
TORCHVISION = (
    "alexnet:size=64",
    *(
        f"{name}:size=32"
        for name in (
            "convnext_tiny",
            "densenet121",
            "efficientnet_b0",
            "efficientnet_v2_s",
            "googlenet",
            "mnasnet0_5",
            "mnasnet0_75",
            "mobilenet_v2",
            "mobilenet_v3_large",
            "mobilenet_v3_small",
            "regnet_x_400mf",
            "regnet_y_400mf",
            "resnet18",
            "resnet34",
            "resnet50",
            "resnext50_32x4d",
            "shufflenet_v2_x0_5",
            "shufflenet_v2_x1_0",
            "squeezenet1_0",
            "squeezenet1_1",
            "swin_t",
            "swin_v2_t",
            "mnasnet1_0",
            "shufflenet_v2_x1_5",
        )
    ),
)
SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "dim"), 32),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "num_key_value_heads"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("intermediate_size", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "hidden_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"), 3),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 3),
    **dict.fromkeys(("d_kv", "head_dim"), 16),
    "vocab_size": 100,
}
FAMILIES = (
    *(f"timm:{name}:size={size},classes=10" for name, size in TIMM.items()),
    *(f"hf:{name}{':' if options else ''}{options}" for name, options in HUGGING_FACE.items()),
    *(f"torchvision:{name},classes=10" for name in TORCHVISION),
)


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a strategy's two steps, by gcprof or by plain PyTorch."""

    gradients: str  # one of gcprof's words; or the outcome, where there are none to compare
    num_without_gradient: int | None = None
    buffers_equal: bool | None = None
    random_equal: bool | None = None
    detail: str = ""
    notes: tuple[str, ...] = ()


class Compared(NamedTuple):
    """A model under a strategy."""

    model: str
    strategy: str
    said: Told
    truth: Told

    @property
    def wrong(self) -> list[str]:
        """Each thing that gcprof says and plain PyTorch refutes; a strategy that is refused says nothing."""
        said, truth = self.said, self.truth
        if said.gradients == "skipped":
            return []
        wrong = []
        if said.gradients != truth.gradients and not {said.gradients, truth.gradients} <= EQUAL:
            wrong.append(f"gradients: {said.gradients}, and by hand {truth.gradients}")
        if said.gradients in EQUAL:
            for field in ("num_without_gradient", "buffers_equal", "random_equal"):
                if getattr(said, field) != getattr(truth, field):
                    wrong.append(f"{field}: {getattr(said, field)}, and by hand {getattr(truth, field)}")
        return wrong


def compare(request: str, channel: int) -> None:
    """Answers with what is said of a model under each strategy, in this process."""
    import torch

    torch.set_num_threads(1)
    with warnings.catch_warnings(action="ignore"):
        found = [(strategy, said, truth) for strategy, said, truth in _compared(Choice(request))]
    os.write(channel, msgspec.json.encode({"strategies": found}) + b"\n")


def _compared(model: Choice) -> Iterator[tuple[str, Told, Told]]:
    from profiler.engines.replies import attempt
    from profiler.measuring.trial import measure

    case = Case(
        model=_small(model), strategy=Choice("none"), optimizer=Choice("sgd"), batch_size=2, device="cpu", seed=0
    )
    digests = None
    plain = Plain(case)
    for strategy in STRATEGIES:
        own = msgspec.structs.replace(case, strategy=Choice(strategy))
        record = attempt(Trial(case=own, passes=("equality",), digests=digests), on_pass=lambda name: None, by=measure)
        if strategy == "none" and record.equality:
            digests = record.equality.digests
        yield strategy, _said(record), plain.truth(strategy) if record.outcome != "skipped" else Told(gradients="-")


def _small(model: Choice) -> Choice:
    """The model with those of SMALL that its family's config has."""
    if not model.name.startswith("hf:"):
        return catalogue.resolve(model, models.TABLE)
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[model.name.removeprefix("hf:")]()
    given = {"sequence": "16"} if "image_size" not in config.to_dict() else {}
    has = {key: str(value) for key, value in SMALL.items() if isinstance(getattr(config, key, None), int)}
    return catalogue.resolve(Choice.of(model.name, {**given, **has, **model.options}), models.TABLE)


def _said(record: Record) -> Told:
    equality = record.equality
    if equality is None:
        return Told(gradients=record.outcome, detail=record.detail or "")
    return Told(
        gradients=verdict(record),
        num_without_gradient=equality.num_without_gradient,
        buffers_equal=equality.buffers_equal,
        random_equal=equality.random_state_equal,
        detail=record.detail or "",
        notes=tuple(note.code for note in record.notes if note.code in SAID_OF),
    )


class Plain:
    """A model in plain PyTorch: twice, and with blocks under checkpoints by hand."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._first, self._first_left = self._run(None)
        self._again, self._again_left = self._run(None, update=self._first[0].gradients)

    def truth(self, strategy: str) -> Told:
        """What is true of a strategy's gradients, of the buffers, and of the random numbers that it draws."""
        from tests.plain_steps import judged, without_gradient

        try:
            steps, left = (self._again, self._again_left) if strategy == "none" else self._run(HAND[strategy])
        except RuntimeError as error:
            return Told(gradients="failed", detail=f"{error}".partition("\n")[0])
        buffers, randoms = _same(self._first_left.buffers, left.buffers), self._first_left.random == left.random
        return Told(
            gradients=judged(self._first, self._again, steps),
            num_without_gradient=len(without_gradient(left.module, steps[0])),
            buffers_equal=buffers,
            random_equal=randoms,
        )

    def _run(self, change: Callable[[list[Any]], None] | None, update: Any = None) -> tuple[Any, Left]:
        import torch

        from profiler.training.blocks import find_blocks
        from tests.plain_steps import two_steps

        build, options = catalogue.load(self._case.model, models.TABLE)
        made: list[Any] = []

        def make() -> tuple[Any, Any]:
            workload = build(batch_size=self._case.batch_size, **options)
            made.append(workload)
            if change:
                names = workload.blocks or find_blocks(workload.module)
                change([workload.module.get_submodule(name) for name in names])
            return workload.module, workload.batch

        steps = two_steps(make, lambda module, batch: made[0].loss(module, batch), update=update)
        module = made[0].module
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers() if "num_batches" not in name}
        return steps, Left(module, buffers, (_global_states(), torch.get_rng_state().tolist()))


class Left(NamedTuple):
    """What two steps left behind."""

    module: Any
    buffers: dict[str, Any]
    random: Any


def _global_states() -> Any:
    import numpy as np

    return random.getstate(), repr(np.random.get_state())


def _same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    import torch

    return first.keys() == second.keys() and all(
        torch.equal(first[name].nan_to_num(), second[name].nan_to_num()) for name in first
    )


def each(blocks: list[Any]) -> None:
    """Put every block under a checkpoint."""
    for block in blocks:
        together([block])


def by_root(blocks: list[Any]) -> None:
    """Put as many segments as the rounded root of the number of blocks under a checkpoint each, but the last."""
    size = len(blocks) // (segments := round(len(blocks) ** 0.5))
    for number in range(segments - 1):
        together(blocks[number * size : (number + 1) * size])


def together(blocks: list[Any]) -> None:
    """Put the blocks under one checkpoint, at the first one's call; the calls of others give what they take."""
    from torch.utils.checkpoint import checkpoint

    if getattr(blocks[0], "inplace", False):  # a checkpoint computes again from what it is given
        blocks[0].inplace = False
    forwards = [block.forward for block in blocks]

    def run(*given: Any, **keywords: Any) -> Any:
        for forward in forwards:
            value = forward(*given, **keywords)
            given = (value, *given[1:])
        return value

    blocks[0].forward = lambda *given, **keywords: checkpoint(run, *given, use_reentrant=False, **keywords)
    for block in blocks[1:]:
        block.forward = lambda value, *further, **keywords: value


HAND = {"all": each, "sqrt": by_root}


def row(found: Sequence[Compared]) -> str:
    """The line of the table for one model."""
    return f"| `{found[0].model}` | {' | '.join(map(_cell, found))} |"


def _cell(compared: Compared) -> str:
    said = compared.said
    also = [f"{code} {SAID_OF[code]}" for code in said.notes]
    detail = f": {said.detail}".replace("|", "\\|") if said.gradients not in EQUAL and said.detail else ""
    wrong = [f"**{WRONG} {'; '.join(compared.wrong)}**"] if compared.wrong else []
    return "; ".join([f"{said.gradients}{detail}", *also, *wrong])


def page(lines: Sequence[str]) -> str:
    """The page with these lines of the table."""
    cells = [cell for line in lines for cell in CELL.split(line.strip("| "))[1:]]
    words = Counter(re.split("[;:]", cell)[0] for cell in cells)
    counts = ", ".join(f"{count} {word}" for word, count in words.most_common())
    num_wrong = sum(WRONG in cell for cell in cells)
    return f"""# Verdicts on models that others wrote

{len(lines)} models of timm, transformers and torchvision, tiny and with random weights, at a batch of two on a CPU in
fp32. Each was run under `none`, `all` and `sqrt`, and the gradients column, the buffers, the random numbers and the
parameters without a gradient were held to plain PyTorch: two runs of two seeded steps as they are, and one with the
same blocks under `torch.utils.checkpoint` by hand (`just bench-verdicts`, which makes this page). Of {len(cells)} rows:
{counts}; {num_wrong} wrong. What is skipped says why.

| model | {" | ".join(f"`{strategy}`" for strategy in STRATEGIES)} |
|---|---|---|---|
""" + "".join(f"{line}\n" for line in lines)


def main(words: Sequence[str]) -> int:
    """Compare the models whose names hold one of the words, or all; 1 where gcprof is wrong, else 0."""
    before = DOCUMENT.read_text(encoding="utf-8").splitlines() if DOCUMENT.exists() else []
    lines = {line.split("`")[1]: line for line in before if line.startswith("| `")}
    num_wrong = 0
    with Local(stage_seconds=LIMIT_SECONDS) as engine:
        for model in FAMILIES:
            if words and not any(word in model for word in words):
                continue
            found = _asked(engine, model)
            num_wrong += sum(bool(compared.wrong) for compared in found)
            lines[model] = row(found)
            print(lines[model], file=sys.stderr, flush=True)
            DOCUMENT.write_text(page([lines[model] for model in FAMILIES if model in lines]), encoding="utf-8")
    return int(bool(num_wrong))


def _asked(engine: Local, model: str) -> list[Compared]:
    try:
        answer = engine.ask("benchmarks.verdicts:compare", model, failing=model)
    except UserError as error:
        said = Told(gradients="no answer", detail=f"{error.message}; {error.hint}")
        return [Compared(model, strategy, said, Told(gradients="-")) for strategy in STRATEGIES]
    return [
        Compared(model, strategy, msgspec.convert(said, Told), msgspec.convert(truth, Told))
        for strategy, said, truth in answer["strategies"]
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
