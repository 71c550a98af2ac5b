"""A training that explains, predicts, plans or measures in between is the one that does not: state is put back."""

import copy
import queue
import random
import signal
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import CheckpointError, checkpoint, set_checkpoint_early_stop

import profiler
from profiler.core.errors import Unsupported, UserError
from profiler.core.record import Record
from profiler.training import kept_state
from tests import trainings
from tests.conftest import attempted
from tests.user_models import keeps, outside_of_blocks

FUNCTIONS = {
    "explain": lambda net, batch, loss: profiler.explain(net, batch, "all", loss=loss, device="t4"),
    "timeline": lambda net, batch, loss: profiler.timeline(net, batch, loss=loss, device="cpu"),
    "predict": lambda net, batch, loss: profiler.predict(net, strategy="all", batch=batch, loss=loss, device="t4"),
    "plan": lambda net, batch, loss: profiler.plan(net, budget="max", batch=batch, loss=loss, device="t4"),
    "measure": lambda net, batch, loss: profiler.measure(net, batch=batch, loss=loss, samples=1),
}
REFUSED = {"lazy": "lazy", "ddp": "DistributedDataParallel"}  # kinds, and a noun of the refusal
QUICK = list(zip(trainings.KINDS, [*FUNCTIONS] * 4, strict=False))
ALL = [(kind, name) for kind in trainings.KINDS for name in FUNCTIONS]


@pytest.fixture
def group(tmp_path):
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("kind", "name"), [pytest.param(*pair, marks=[] if pair in QUICK else pytest.mark.slow) for pair in ALL]
)
def test_a_training_goes_on_as_if_nothing_had_been_asked(kind, name, request):
    if kind == "ddp":
        request.getfixturevalue("group")
    expected = trainings.train(kind)
    said = []

    def ask(net, batch, loss):
        if kind == "lazy":
            net = trainings.KINDS[kind]()  # that of the training has had its first step
        try:
            FUNCTIONS[name](net, batch, loss)
        except (UserError, Unsupported) as error:
            said.append(str(error))

    assert trainings.train(kind, ask) == expected
    assert [REFUSED[kind] in text for text in said] == [True] if kind in REFUSED else name == "plan" or not said


def together(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


class Copied:
    def __init__(self, function):
        self.function = function

    def __deepcopy__(self, memo):
        together(self.function)
        return self


def test_another_thread_copies_builds_and_runs_its_model_while_a_step_is_traced():
    model, batch = trainings.mlp().eval(), torch.randn(trainings.ROWS, trainings.WIDTH)
    expected, right = model(batch).detach(), queue.SimpleQueue()  # a list would get its values back

    def copied():
        copies = copy.deepcopy(model)
        equal = map(torch.equal, copies.state_dict().values(), model.state_dict().values())
        right.put(all(equal) and copies(batch).equal(expected) and bool(nn.Linear(2, 2).weight.abs().max() < 1))

    traced = trainings.mlp()
    traced.other = Copied(copied)

    def loss(output, target):
        together(copied)
        return nn.functional.mse_loss(output, target)

    profiler.explain(traced, (batch, batch), loss=loss, device="t4")

    assert right.qsize() >= 2  # as the module is copied, and in its step
    assert all(right.get() for _ in range(right.qsize()))


def interrupted(function, given, seconds):
    """Interrupt the function by a signal after so long; whether the signal came before its end."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        function(*given)
    except KeyboardInterrupt:
        return True
    except (UserError, Unsupported):
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return False


@pytest.mark.parametrize(
    "times", [2, pytest.param(20, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.nightly)]
)
def test_a_training_goes_on_after_an_interrupt_at_any_moment(times):
    chance, kinds, stopped, apart = random.Random(times), [*trainings.KINDS.keys() - REFUSED.keys()], [], []
    expected, seconds = cache(trainings.train), {}
    own = torch.Tensor.__deepcopy__, nn.Parameter.__deepcopy__, nn.Module.__call__

    for _ in range(times):
        kind, name = chance.choice(sorted(kinds)), chance.choice([*FUNCTIONS])

        def ask(*given, kind=kind, name=name):
            if (kind, name) not in seconds:  # which it takes without an interrupt
                began = time.perf_counter()
                interrupted(FUNCTIONS[name], given, 60)
                seconds[kind, name] = time.perf_counter() - began
            stopped.append(interrupted(FUNCTIONS[name], given, chance.uniform(0, seconds[kind, name])))

        apart += [] if trainings.train(kind, ask) == expected(kind) else [(kind, name, times)]

    assert apart == []
    assert sum(stopped) >= times // 2
    assert _get_current_dispatch_mode_stack() == []
    assert (torch.Tensor.__deepcopy__, nn.Parameter.__deepcopy__, nn.Module.__call__) == own


def test_a_gpu_that_is_used_later_gets_the_seed_that_it_would_have_had():
    batch = torch.zeros(trainings.ROWS, trainings.WIDTH)
    torch.manual_seed(42)
    awaited = dict(vars(torch.cuda._lazy_seed_tracker))

    FUNCTIONS["explain"](trainings.mlp(), (batch, batch), nn.functional.mse_loss)

    assert vars(torch.cuda._lazy_seed_tracker) == awaited


def test_a_forward_that_is_observed_leaves_plain_state_buffers_and_random_state_as_they_were():
    net, x, _ = keeps.caching()
    net.append(nn.BatchNorm1d(x.shape[-1])).append(nn.Dropout(0.5))
    net(x)
    before, kept = kept_state.image(net), [torch.get_rng_state(), *(buffer.clone() for buffer in net.buffers())]

    profiler.apply(net, "recursive", example=x)

    assert kept_state.image(net) == before
    assert all(map(torch.equal, kept, [torch.get_rng_state(), *net.buffers()]))
    assert all(parameter.grad is None for parameter in net.parameters())
    net(x)
    assert kept_state.moved(before, kept_state.image(net))


def test_unregistered_tensors_that_are_written_in_place_get_their_values_back():
    net = nn.Linear(2, 2)
    net.count, net.cache, net.weights = torch.zeros(()), {"rows": [torch.ones(3)]}, torch.ones(2, requires_grad=True)
    count, rows = net.count, net.cache["rows"][0]

    net.itself = [net.cache]
    net.itself.append(net.itself)
    net.row, net.sparse = torch.zeros(1).expand(3), torch.zeros(2).to_sparse()

    with kept_state.kept(net):
        net.count += 1
        net.cache["rows"][0].mul_(2)
        with torch.no_grad():
            net.weights.zero_()

    assert (net.count, net.count.item()) == (count, 0)
    assert torch.equal(net.cache["rows"][0], torch.ones(3))
    assert net.cache["rows"][0] is rows
    assert torch.equal(net.weights, torch.ones(2))


# --- what a recompute does not find again is named: held to plain PyTorch with checkpoints by hand


def by_hand(build: Callable[[], Any], *, checkpointed: bool) -> list[torch.Tensor]:
    """The gradients of a plain step, with each block under PyTorch's checkpoint, or without."""
    torch.manual_seed(0)
    module, batch, *loss = build()
    lists = [part for part in module.modules() if isinstance(part, nn.ModuleList)]
    for block in lists[0] if lists else module:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False) if checkpointed else block.forward
    torch.manual_seed(0)
    (loss[0](module(batch[0]), batch[1]) if loss else module(*batch)).backward()
    return [parameter.grad for parameter in module.parameters()]


def checkpointed(factory: str, blocks: str | None) -> Record:
    """The record of `all` beside that of `none`, which is ok."""
    fields = {"batch_size": None, "blocks": blocks, "passes": ("equality",)}
    none, every = (attempted(f"{outside_of_blocks.__file__}:{factory}", name, **fields) for name in ("none", "all"))
    assert none.outcome == "ok"
    return every


@pytest.mark.parametrize(
    ("factory", "blocks", "cause"),
    [("fast", "base.blocks.*", "functional_call"), ("noisy", None, "set_checkpoint_early_stop(False)")],
)
def test_a_recompute_that_is_silently_wrong_is_invalid_with_its_cause(factory, blocks, cause):
    build = getattr(outside_of_blocks, factory)
    plain, recomputed = by_hand(build, checkpointed=False), by_hand(build, checkpointed=True)
    assert not all(map(torch.allclose, plain, recomputed))

    record = checkpointed(factory, blocks)

    assert record.outcome == "invalid"
    assert cause in record.detail
    with set_checkpoint_early_stop(False):
        is_stopped = all(map(torch.allclose, plain, by_hand(build, checkpointed=True)))
    assert is_stopped == ("early_stop" in cause)


@pytest.mark.parametrize(
    ("factory", "cause"), [("dual", "forward_ad"), ("cached", "a dict that 'blocks.0' is called with")]
)
def test_a_recompute_that_fails_is_told_with_its_cause(factory, cause):
    build = getattr(outside_of_blocks, factory)
    by_hand(build, checkpointed=False)
    with pytest.raises(CheckpointError):
        by_hand(build, checkpointed=True)

    record = checkpointed(factory, "blocks.*")

    assert record.outcome == "failed"
    assert cause in record.detail
