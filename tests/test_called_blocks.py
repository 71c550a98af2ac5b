"""Blocks that are calls, of a module or of a marked function, or are left out. The truth is a plain loop."""

import copy
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import profiler
from profiler.core import plan_file
from profiler.core.case import Choice, Trial
from profiler.core.errors import Unsupported, UserError
from profiler.engines.worker import attempt
from profiler.measuring.trial import measure
from profiler.planning.plan_code import emit
from profiler.training.models.user import as_workload
from tests import make as by_hand
from tests.conftest import measured
from tests.user_models.marked_loop import make

HERE = Path(__file__).parent / "user_models"
CUT = {"segments:k=3": "2x2+2", "sqrt": "k=2: 3+3", **dict.fromkeys(("recursive", "from-start", "all", "first:n=2"))}
ROWS, DIM = 2048, 32
ACTIVATION = ROWS * DIM * 4  # bytes of what one call gives the next


class Shared(nn.Module):
    """One block that runs six times, in a loop or by its `forward`."""

    def __init__(self, *, by_name: bool = False) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.Tanh(), nn.Dropout(0.1), nn.Linear(4 * DIM, DIM))
        self.by_name = by_name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = self.block.forward(x) if self.by_name else self.block(x)
        return x.square().mean()


def shared(*, by_name: bool = False):
    return Shared(by_name=by_name), torch.randn(ROWS, DIM)


BUILDS = {
    "shared": (shared, "block"),
    "by name": (partial(shared, by_name=True), "block"),
    "loop": (make, None),
    "methods": (partial(make, "methods"), None),
    "context": (partial(make, "context"), None),
}


def gradients(module: nn.Module, batch: torch.Tensor) -> list[torch.Tensor]:
    """Of the second of two steps of a plain loop, with the same random numbers each time."""
    for _ in range(2):
        torch.manual_seed(1)
        module.zero_grad()
        module(batch).backward()
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("strategy", CUT)
@pytest.mark.parametrize("name", BUILDS)
def test_gradients_are_those_of_the_plain_loop_whose_six_calls_are_cut(name, strategy):
    build, blocks = BUILDS[name]
    torch.manual_seed(0)
    module, batch = build()
    changed = copy.deepcopy(module)

    applied = profiler.apply(changed, strategy, example=batch, blocks=blocks)

    expected = gradients(module, batch)
    for copied in (changed, copy.deepcopy(changed)):
        assert all(torch.equal(a, b) for a, b in zip(gradients(copied, batch), expected, strict=True))
    assert sum(applied.recomputes.values())
    if CUT[strategy]:
        repeated = any(note.code == "GCP050" for note in applied.notes)
        assert (applied.split, repeated) == (CUT[strategy], blocks is not None)
    with torch.no_grad():
        assert torch.equal(changed.eval()(batch), module.eval()(batch))


def test_what_is_saved_is_what_the_cut_says():
    model = Choice(f"{HERE / 'marked_loop.py'}:make")
    none = measured(model, "none", batch_size=None)

    cut = measured(model, "segments:k=3", batch_size=None)

    # Each tanh saves its output, which the next product saves too, and the batch is there before: six activations. Of
    # the two segments of two calls what goes into the next is left: four.
    assert none.readings.saved_bytes - cut.readings.saved_bytes == 2 * ACTIVATION - 2 * torch.get_rng_state().nbytes


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDS)
def test_a_plan_over_calls_fits_and_is_measured_as_predicted_from_its_file(name, here):
    build, blocks = BUILDS[name]
    whole = profiler.predict(build, device="cpu", blocks=blocks).readings.peak_bytes

    plan = profiler.plan(build, budget="92%", device="cpu", blocks=blocks)

    record = profiler.measure(build, strategy=plan, samples=1, blocks=blocks)
    plan.save("plan.json")
    predicted = profiler.predict(build, strategy=here / "plan.json", device="cpu", blocks=blocks).readings
    assert (record.outcome, record.equality.gradients_equal) == ("ok", True)
    assert record.readings.peak_bytes == predicted.peak_bytes <= 0.92 * whole
    assert [name.partition("#")[2] for name in plan.fingerprint] == list("123456")
    assert 0 < sum(len(plan_file.names(one)) for one in plan.segments) < len(plan.fingerprint)
    with pytest.raises(UserError, match="is a call, not a module"):
        emit(plan, "python")


def test_a_function_that_is_made_anew_is_refused_where_it_would_be_stale():
    module, batch = make("anew")
    profiler.apply(module, "segments:k=3", example=batch)

    with pytest.raises(Unsupported, match="made anew in each forward"):
        module(batch)


@pytest.mark.parametrize("seen_short", [False, True])
def test_another_number_of_calls_is_refused(seen_short):
    module, batch = make("moody")
    module.is_short = seen_short
    profiler.apply(module, "segments:k=2", example=batch)
    module.is_short = not seen_short

    with pytest.raises(Unsupported, match="unlike when it was observed"):
        module(batch)

    module.is_short = seen_short
    module(batch).backward()


# --- segments are of forwards that call all of their blocks in order; another forward is refused, not computed


class Dropped(nn.Module):
    """Leaves out the layers that it is told to leave out, or half of them at random where it is told nothing."""

    def __init__(self, *left_out):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.left_out = set(left_out)
        self.share = 0.0

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            if number not in self.left_out and float(torch.rand(())) >= self.share:
                x = torch.tanh(layer(x)) if number == 3 else layer(x)
        return x.sum()


class InterruptedBehindFirst:
    def __contains__(self, number):
        if number:
            raise KeyboardInterrupt
        return False


def cut():
    net, x = Dropped(), torch.randn(2, 4)
    profiler.apply(net, "segments:k=2", example=x)
    return net, x


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (0, "called 'layers.1' where 'layers.0' was expected.*--strategies all works"),
        (1, "the forward ended where 'layers.1' was expected"),
    ],
)
def test_a_block_that_is_left_out_is_told_at_once_or_when_the_forward_ends(number, told):
    net, x = cut()
    net.left_out = {number}

    with pytest.raises(Unsupported, match=told):
        net(x)


def test_a_forward_that_raised_between_two_blocks_leaves_the_next_one_to_run():
    net, x = cut()
    expected = net(x)
    net.left_out = InterruptedBehindFirst()
    with pytest.raises(KeyboardInterrupt), pytest.warns(RuntimeWarning, match="which run as one segment"):
        net(x)
    net.left_out = set()

    assert torch.equal(net(x), expected)


class Recursive(nn.Module):
    """Calls itself for the rest of its blocks."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x, at=0):
        return self(self.layers[at](x), at + 1) if at < 4 else x.sum()


def test_forwards_within_forwards_go_on_where_the_outer_one_is():
    net, x = Recursive(), torch.randn(2, 4)
    plain = copy.deepcopy(net)
    profiler.apply(net, "segments:k=2", example=x)

    for module in (net, plain):
        module(x).backward()

    assert all(torch.equal(a.grad, b.grad) for a, b in zip(net.parameters(), plain.parameters(), strict=True))


@pytest.mark.parametrize(("strategy", "outcome"), [("all", "ok"), ("segments:k=2", "skipped")])
def test_a_run_refuses_what_leaves_blocks_out_at_random_and_checkpoints_each_block(strategy, outcome):
    def build():
        net = Dropped()
        net.share = 0.5
        return as_workload((net, torch.randn(2, 4)))

    def record_of(case, digests=None):
        trial = Trial(case=case, passes=("equality", "memory"), digests=digests)
        return attempt(trial, on_pass=lambda name: None, by=lambda trial, on_pass: measure(trial, build=build))

    case = by_hand.case(strategy, batch_size=None, blocks="layers.*")

    assert record_of(case, record_of(case.baseline).equality.digests).outcome == outcome


IDLE = "average.0, average.1, average.2"
FROZEN = f"not counted as blocks, as they are frozen, or in evaluation mode, and no forward runs them: {IDLE}"
NOT_RUN = f"3 checkpointed blocks did not run in the step: {IDLE}; they are not recomputed"


@pytest.mark.parametrize(
    ("words", "blocks", "num_blocks", "note"),
    [
        ("", None, 3, FROZEN), (":is_frozen=false,trains=false", None, 3, FROZEN),
        (":is_frozen=false", None, 6, NOT_RUN), ("", "layers.*,average.*", 6, NOT_RUN),
    ],
)  # fmt: skip
def test_modules_that_no_forward_runs_are_no_blocks_where_they_rest_and_told_otherwise(words, blocks, num_blocks, note):
    case = by_hand.case("all", model=Choice(f"{HERE}/gradients.py:averaged{words}"), batch_size=4, blocks=blocks)

    record = measure(Trial(case=case, passes=("equality", "flops")))

    (told,) = [note.text for note in record.notes if note.code == "GCP050"]
    assert told.startswith(note)
    assert record.built.num_blocks == num_blocks
    assert blocks or words or record.readings.block_calls == (2, 2, 2)
