"""A model that recomputes by its own means is told of, and one that only looks like it is not."""

import pytest

from profiler.core.case import Choice, Trial
from profiler.measuring.meters.saved_graph import recompute_remark as remark
from profiler.predicting.prediction import predict
from tests import make
from tests.conftest import attempted, measured, notes
from tests.user_models import architectures, hooks, own_checkpoint, own_recompute

FILE = own_recompute.__file__
RECOMPUTING = ("own", "class")
LINEARS = tuple(f"blocks.{block}.{layer}" for block in range(3) for layer in ("first", "second"))


def model(way):
    return Choice.of(f"{FILE}:make", {"way": way})


def flops_notes(choice, code="GCP064", *, strategy="none", **fields):
    return notes(measured(choice, strategy, passes=("flops",), **fields), code)


@pytest.mark.parametrize("way", [*RECOMPUTING, "reentrant", "non-reentrant", "hooked", "critic", "saving"])
def test_the_modules_that_run_again_are_named_of_none_alone_measured_and_predicted(way):
    told = [remark(LINEARS)] if way in RECOMPUTING else []

    assert flops_notes(model(way)) == told
    for strategy in ("none", "own", "all"):
        trial = Trial(case=make.case(strategy, model=model(way), batch_size=4, device="fake:cpu"))
        assert notes(predict(trial), "GCP064") == (told if strategy == "none" else [])


@pytest.mark.parametrize(
    "choice",
    ["mlp", "batchnorm", f"{architectures.__file__}:recurrent", f"{hooks.__file__}:hooked",
     f"{own_checkpoint.__file__}:wrapped:way=sequential"],
)  # fmt: skip
def test_other_models_recompute_nothing_by_their_own_means(with_test_models, choice):
    assert flops_notes(choice, batch_size=4) == []


@pytest.mark.parametrize("strategy", ["own", "all"])
def test_what_is_kept_for_a_recompute_is_not_advised_away(strategy):
    blocks, batch = 3, 64
    kept = blocks * batch * 8 * 4  # the input of each block: (batch, width)

    (text,) = flops_notes(model("own"), "GCP054", strategy=strategy, batch_size=batch)

    assert text == (
        f"{kept / 1024:.2f} KiB are attributes of ctx, which no checkpoint frees: OwnCheckpoint; "
        "OwnCheckpoint runs modules again in the backward, perhaps from them"
    )


def test_what_such_a_recompute_raises_is_told_with_its_module():
    record = attempted(model("raising"), "none", passes=("memory",))

    assert record.outcome == "failed"
    assert ", raised in the backward, where the model's own code runs 'blocks.2.second'" in record.detail
