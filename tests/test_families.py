"""Families of torchvision, timm and transformers: built, blocks found, gradients equal. All: `tests.families`."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from profiler.core import catalogue
from profiler.core.case import Choice, Trial
from profiler.core.errors import Unsupported
from profiler.measuring.trial import measure
from profiler.training import models
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
    ("model", "reason"),
    [
        ("torchvision:resnet81", "torchvision has no classification model 'resnet81'; the nearest is 'resnet18'"),
        ("torchvision:inception_v3:size=75", "inception_v3 does not take 2 images of 75 x 75: .* too small"),
        ("torchvision:vit_b_32:size=33", "vit_b_32 does not take 2 images of 33 x 33: .* patch size"),
        ("torchvision:resnet18:size=big", "size=big is not a number of pixels; size=own is the model's own, 224"),
        ("timm:resnet18x", "timm has no model 'resnet18x'; the nearest is 'resnet18'"),
        ("hf:berd", "has no family 'berd'; the nearest is 'bert'"),
        ("hf:bert:hiden_size=3", "hf:bert has no 'hiden_size'; the nearest is 'hidden_size'"),
        ("hf:gpt2:head=seq2seq", "hf:gpt2 has no head 'seq2seq'; it has causal, classification"),
        ("hf:bert:sequence=600", "sequence=600 is longer than the 512 positions of the config"),
        ("hf:bert:size=32", "size=32 has no effect: this head takes no images"),
    ],
)
def test_what_there_is_not_is_unsupported_with_the_nearest(model, reason):
    with pytest.raises(Unsupported, match=reason):
        built(model)


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


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("head", "model"),
    [("causal", "hf:gpt2:n_embd=32,n_head=2,n_layer=2"), ("masked", "hf:bert:hidden_size=32,num_attention_heads=2")],
)
def test_the_other_heads_train_too(head, model):
    for chosen in (head, "classification"):
        workload = built(f"{model},head={chosen},vocab_size=50,sequence=8")

        workload.loss(workload.module, workload.batch).backward()

        assert workload.batch["labels"].shape == ((2, 8) if chosen == head else (2,))


@pytest.mark.slow
def test_extras_that_are_missing_are_named():
    code = (
        "import sys\nsys.modules['timm'] = sys.modules['transformers'] = None\n"
        "from profiler.core import catalogue\nfrom profiler.training import models\n"
        "from profiler.core.case import Choice\n"
        "from profiler.core.errors import Unsupported\n"
        "for name in ('timm:resnet18', 'hf:bert'):\n"
        "    try: catalogue.load(Choice(name), models.TABLE)\n"
        "    except Unsupported as error: print(error)\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == [
        "timm is not installed: pip install 'gcprof[timm]'",
        "transformers is not installed: pip install 'gcprof[hf]'",
    ]


def test_families_are_listed_as_such():
    names = [entry.name for entry in catalogue.entries(models.TABLE)]

    assert {"torchvision:NAME", "timm:NAME", "hf:NAME"} <= set(names)
