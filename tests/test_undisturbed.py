"""A training that explains, predicts, plans or measures in between is the one that does not, to the bit."""

import copy
import queue
import random
import signal
import threading
import time
from functools import cache

import pytest
import torch
from torch import distributed, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import profiler
from profiler.core.errors import Unsupported, UserError
from tests import trainings

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
    """Run a function in another thread."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


class Copied:
    """Runs a function in another thread where it is copied."""

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
            moment = chance.uniform(0, seconds[kind, name])
            stopped.append(interrupted(FUNCTIONS[name], given, moment))

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
