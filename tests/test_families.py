"""Families of torchvision, timm and transformers: built, blocks found, gradients equal. All: `tests.families`."""

from __future__ import annotations

import re

import pytest

from profiler.core.case import Choice, Trial
from profiler.measuring.trial import measure
from profiler.training.assemble import assemble
from profiler.training.workload import Workload
from tests import make
from tests.conftest import measured
from tests.families import DOCUMENT, FAMILIES

BLOCKS = {  # by the papers or the config: what each is made of
    "torchvision:googlenet": 7 + 9,  # convolutions and pools, and nine inception modules
    "torchvision:mobilenet_v3_small": 11 + 2,  # bottlenecks, first and last convolution
    "torchvision:resnet18": 8,
    "torchvision:shufflenet_v2_x0_5": 4 + 8 + 4,
    "torchvision:squeezenet1_1": 8 + 5,  # fire modules; convolution, ReLU and three pools
    "hf:bert": 3,
    "hf:gpt2": 3,
    "hf:llama": 3,
    "hf:mistral": 3,
    "hf:mixtral": 3,  # its experts are within
    "hf:qwen2": 3,
    "hf:t5": 3 + 3,
    "hf:bart": 3 + 3,
    "hf:vit": 3,
    "hf:whisper": 3 + 3,
}
QUICK = ("torchvision:resnet18", "hf:gpt2", "hf:t5")
LINE = re.compile(r"\| `(?P<model>[^`]+)` \| (?P<blocks>\d+) \| .* \| (?P<gradients>[^|]+) \|$", re.MULTILINE)


def family(model: str) -> str:
    return ":".join(model.split(":")[:2])


def built(model: str) -> Workload:
    return assemble(make.case("none", model=Choice(model), batch_size=2)).workload


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=() if family(model) in QUICK else pytest.mark.nightly, id=family(model))
        for model in FAMILIES
        if family(model) in BLOCKS
    ],
)
def test_a_family_is_built_its_blocks_found_and_its_gradients_are_equal(model):
    none = measured(model, "none", batch_size=2, passes=("equality",))

    case = make.case("all", model=Choice(model), batch_size=2)
    record = measure(Trial(case=case, passes=("equality", "memory"), digests=none.equality.digests))

    assert record.outcome == "ok"
    assert record.built.num_blocks == BLOCKS[family(model)]
    assert record.equality.loss_equal
    assert record.equality.gradients_equal
    assert record.readings.saved_bytes > 0


def test_the_table_in_the_documents_is_of_these_models_and_blocks_and_all_are_equal():
    rows = {row["model"]: row for row in LINE.finditer(DOCUMENT.read_text())}

    assert list(rows) == list(FAMILIES)
    counted = {family(model): int(row["blocks"]) for model, row in rows.items()}
    assert {name: counted[name] for name in BLOCKS} == BLOCKS
    assert {row["gradients"] for row in rows.values()} == {"equal to the bit"}


def test_every_classification_model_of_torchvision_is_of_a_family_that_is_in_the_table():
    import torchvision

    names = torchvision.models.list_models(module=torchvision.models)
    shown = {model.split(":")[1] for model in FAMILIES if model.startswith("torchvision:")}

    def kind(name: str) -> str:
        return re.match(r"wide_resnet|resnext|swin_v2|efficientnet_v2|[a-z]+", name)[0]

    assert {kind(name) for name in names} == {kind(name) for name in shown}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "blocks"),
    [("timm:resnet10t:size=32,classes=3", 4), ("timm:vit_tiny_patch16_224:size=32,classes=3", 12)],
)
def test_a_model_of_timm_is_built_and_its_gradients_are_equal(model, blocks):
    record = measured(model, "all", batch_size=2, passes=("equality",))

    assert (record.outcome, record.built.num_blocks) == ("ok", blocks)
    assert record.equality.gradients_equal


@pytest.mark.nightly
@pytest.mark.parametrize("model", [model for model in FAMILIES if family(model) in ("hf:bert", "hf:gpt2", "hf:t5")])
def test_the_models_own_switch_saves_memory_and_its_gradients_are_equal(model):
    none, switched = (measured(model, s, batch_size=2, passes=("equality", "memory")) for s in ("none", "hf"))

    assert switched.outcome == "ok"
    assert switched.equality.gradients_equal
    assert switched.readings.saved_bytes < none.readings.saved_bytes
