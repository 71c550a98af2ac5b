"""No checkpointing of blocks passes the floor, and what else would lower a peak is counted."""

import msgspec
import pytest

from profiler.analysis.explanation import CHUNKS, remedies
from profiler.analysis.live_bytes import peak, stage_of
from profiler.analysis.peak_floor import floor
from profiler.core.case import Choice
from profiler.core.trace_data import Call, Save, live
from profiler.predicting.traced_case import trace_case
from profiler.workflows.explain import explain
from profiler.workflows.spec import Request
from tests import make
from tests.conftest import measured
from tests.traced import BLOCKS, by_hand, traced
from tests.user_models import by_hand as models


def test_the_floor_is_what_is_static_and_the_stage_at_work():
    operators = [("forward", "blocks.0"), ("forward", "blocks.1"), ("backward", "blocks.1"), ("backward", "blocks.0")]
    trace = by_hand(
        operators,
        [
            (1000, 0, 4, "", "before", "parameters"),
            (100, 1, 4, "blocks.0", "forward", "saved"),
            (50, 2, 3, "blocks.1", "forward", "saved"),
            (7, 3, 4, "blocks.1", "backward", "temporaries"),  # the gradient that goes from one to the other
            (3, 3, 4, "blocks.1", "backward", "gradients"),
        ],
    )
    saved = [(100, 1, 3, "blocks.0", "forward", "saved"), (50, 2, 3, "blocks.1", "forward", "saved")]
    made = [(100, 1, 2, "blocks.0", "forward", "saved"), (300, 5, 5, "", "optimizer", "temporaries")]

    found = floor(trace, blocks=BLOCKS)

    assert (found.nbytes, found.static_bytes, found.work_bytes) == (1000 + 3 + 100 + 7, 1003, 107)
    assert (found.stage, found.phase) == ("blocks.0", "backward")
    assert peak(trace).nbytes == 1000 + 3 + 100 + 50 + 7
    assert floor(by_hand(operators, saved), blocks=BLOCKS).nbytes == 150  # the input that a block saves is its stage's
    assert floor(by_hand([*operators, ("optimizer", "")], made), blocks=BLOCKS).nbytes == 300
    assert [stage_of(BLOCKS)(name) for name in ("blocks.0.a", "blocks.01", "blocks")] == ["blocks.0", "", ""]


MODELS = [  # a model, its optimizer, and by how much its floor may be below the peak of `all`
    ("transformer:layers=4,width=64", "adamw", 0.05),
    ("transformer:layers=8,width=64,vocabulary=64", "sgd", 0.05),
    ("cifar-resnet", "adamw", 0.25),  # three blocks of one size: what the recompute itself takes is not in the floor
    ("mnist-cnn:channels=4", "sgd", 0.9),  # 301 modules: `all` keeps every input
    ("mlp", "adamw", 0.9),  # the random state that a checkpoint keeps is larger than what it saves
    ("torchvision:efficientnet_b0", "sgd", 0.1),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "optimizer", "distance"),
    [pytest.param(*one, marks=[pytest.mark.nightly] * one[0].startswith("torchvision"), id=one[0]) for one in MODELS],
)
def test_no_checkpointing_of_blocks_passes_the_floor(model, optimizer, distance):
    baseline, blocks = traced(model, optimizer=optimizer, with_saves=True)
    every, _ = traced(model, "all", optimizer=optimizer)

    least, proved = (floor(baseline, blocks=blocks, is_proof=is_proof).nbytes for is_proof in (False, True))

    reached = peak(every).nbytes
    assert (1 - distance) * reached <= least <= reached
    assert (1 - 2 * distance) * reached <= proved <= reached
    assert floor(every, blocks=blocks).nbytes <= reached
    for strategy in ("segments:k=4,split=balanced", "recursive", "every") if "layers=8" in model else ():
        assert least <= peak(traced(model, strategy, optimizer=optimizer)[0]).nbytes


def test_a_proof_counts_what_a_block_saved_from_its_first_read_to_its_own_last():
    operators = [("forward", "blocks.0")] * 2 + [("backward", "blocks.0")] * 4
    saved = [(size, 1, 6, "blocks.0", "forward", "saved") for size in (100, 50, 7)]
    trace = by_hand(operators, [*saved, (1, 0, 6, "", "before", "parameters"), (3, 6, 6, "", "backward", "gradients")])
    saves = (Save(0, 1, 4), Save(1, 2, 3), Save(1, 2, 2), Save(2, 2, None), Save(None, 2, 3))
    call = Call("blocks.0", 0, 2, (0, 5), (), ())
    inner = Call("blocks.0.a", 0, 1, (0, 1), (), ())

    def proved(**given):
        return floor(msgspec.structs.replace(trace, **given), blocks=BLOCKS, is_proof=True)

    found = proved(saves=saves, calls=(inner, call))

    assert found.nbytes == 1 + 100 + 50  # at the first two operators that read; the third size is never read
    assert proved(saves=saves[:1], calls=(call,)).nbytes == 1 + 100
    assert proved().nbytes == proved(saves=saves, calls=(inner,)).nbytes == 1 + 3


LOOP = [("forward", "m"), ("forward", "m"), ("backward", "m"), ("optimizer", "")]


@pytest.mark.parametrize(
    ("device", "operators", "allocations", "floor_bytes", "expected"),
    [
        (
            "cpu",
            LOOP,
            [
                (1000, 0, 4, "m", "before", "parameters"),
                (400, 0, 4, "m", "before", "optimizer"),
                (600, 1, 3, "m", "forward", "saved"),
                (40, 3, 4, "m", "backward", "gradients"),
            ],
            1700,
            {"optimizer": 400, "checkpointing": 340, "batch": 300},  # the host is no other memory here
        ),
        (  # offload gives what waits
            "fake:h100",
            [("forward", "m"), ("forward", "n"), ("backward", "n"), ("backward", "m")],
            [(500, 1, 4, "m", "forward", "saved"), (300, 2, 3, "n", "forward", "saved")],
            800,
            {"batch": 400, "offload": 300},
        ),
        (  # gradients freed as they arrive give what is there at the end
            "cpu",
            [("backward", "n"), ("backward", "m"), ("optimizer", "")],
            [(500, 1, 3, "n", "backward", "gradients"), (300, 2, 3, "m", "backward", "gradients")],
            800,
            {"gradients": 300},
        ),
    ],
)
def test_every_remedy_gives_what_the_lives_say_and_the_strongest_is_first(
    device, operators, allocations, floor_bytes, expected
):
    trace = msgspec.structs.replace(by_hand(operators, allocations), device=device)

    found = [(remedy.kind, remedy.nbytes) for remedy in remedies(trace, floor_bytes=floor_bytes)]

    assert found == list(expected.items())


def test_checkpointed_inputs_on_the_host_give_what_the_same_step_by_hand_gives():
    path = models.__file__

    def trace_of(strategy, way):
        model = Choice.of(f"{path}:deep", {"way": way})
        return trace_case(make.case(strategy, model=model, batch_size=None, device="fake:h100"))[1]

    checkpointed, on_host = trace_of("all", "plain"), trace_of("own", "host")
    gains = {remedy.kind: remedy.nbytes for remedy in remedies(checkpointed, floor_bytes=0)}

    assert "offload" not in gains
    assert gains["host-inputs"] > 15 * 4096 * 64 * 4  # most of 24 inputs
    assert max(live(checkpointed)) - gains["host-inputs"] == pytest.approx(max(live(on_host)), rel=0.1)


@pytest.mark.slow
def test_half_the_batch_of_a_rehearsed_step_is_rehearsed(hollow, here):
    model = "transformer:layers=2,width=64,sequence=32,vocabulary=128"

    def explained(batch_size: int):
        words = Request(strategies="all", device="h100", batch_size=str(batch_size), precision="amp-bf16")
        return explain(model, words)[1]

    whole, half = explained(16), explained(8)

    assert {remedy.kind: remedy.nbytes for remedy in whole.remedies}["batch"] == whole.peak.nbytes - half.peak.nbytes


@pytest.mark.slow
def test_the_loss_in_chunks_takes_what_a_loss_in_chunks_by_hand_takes():
    model = f"{models.__file__}:language"

    def gains(**options):
        case = make.case(model=Choice.of(model, options), batch_size=None, device="fake:cpu")
        return {remedy.kind: remedy.nbytes for remedy in remedies(trace_case(case)[1], floor_bytes=0)}

    by_hand = measured(Choice.of(model, {"chunks": CHUNKS}), "own", batch_size=None).readings.peak_bytes
    whole = measured(model, "none", batch_size=None).readings.peak_bytes

    assert whole > 3 * 2048 * 2048 * 4  # logits, log-probabilities and their gradient: (tokens, vocabulary), fp32
    assert by_hand < whole / 6
    assert whole - gains()["loss"] == pytest.approx(by_hand, rel=0.05)
    assert "loss" not in gains(vocabulary=2, width=64)  # small logits
    assert "loss" not in gains(chunks=8)
