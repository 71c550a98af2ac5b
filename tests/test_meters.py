"""The meters on devices that tell what is written down: what becomes of it is arithmetic."""

from functools import partial
from itertools import count
from types import SimpleNamespace

import msgspec
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from profiler.core.case import Choice, Trial
from profiler.core.gpu_specs import CONTEXT_BYTES, LIBRARY_SHARE
from profiler.core.record import Conditions
from profiler.core.units import MIB
from profiler.measuring import trial
from profiler.measuring.bench import Bench
from profiler.measuring.devices import Span
from profiler.measuring.meters import operators, time
from profiler.measuring.meters.memory_growth import Leftovers
from profiler.measuring.ranks import Group
from profiler.predicting.traced_case import trace_case
from profiler.training.workload import Workload, train_step
from tests import make
from tests.scripted_steps import Scripted, step

LAYER, BATCH = 16 * 16 * 4, 4 * 16 * 4  # bytes


def workload(module=None, batch=None):
    module = module or nn.Linear(16, 16, bias=False)
    batch = torch.ones(4, 16) if batch is None else batch
    return Workload(module=module, batch=batch, loss=lambda module, batch: module(batch).sum())


class Watched:
    """A device that tells these spans, and how often it was marked; it holds so many bytes."""

    def __init__(self, spans=(), held=None):
        self.marks, self.held, self._spans = 0, held, spans

    def watch(self, resting_bytes):
        self.resting_bytes = resting_bytes
        return self

    def __enter__(self):
        return self

    def __exit__(self, *args): ...

    def mark(self, *, follow=False):
        self.marks += 1

    def spans(self):
        return list(self._spans)

    def held_bytes(self):
        return self.held


def span(start, peak, end, **others):
    return Span(start_bytes=start, peak_bytes=peak, end_bytes=end, **others)


# --- what earlier passes leave


def test_a_model_that_is_still_there_when_the_next_is_built_was_left_and_the_most_there_was_is_remembered():
    leftovers = Leftovers(Watched())
    kept = workload(nn.BatchNorm1d(16, affine=False), batch=torch.ones(1))  # two buffers of 16 numbers, and a count

    found = []
    for number in range(4):
        leftovers.start()
        leftovers.built(kept if number == 0 else workload())
        found.append((leftovers.nbytes, leftovers.model_bytes, leftovers.most_bytes))
        if number == 1:
            kept = None

    left = 2 * 16 * 4 + 8 + 4
    assert found == [(0, 0, 0), (left, left, left), (0, 0, left), (0, 0, left)]


def test_on_a_device_that_counts_its_bytes_these_are_what_is_left_but_for_what_is_used_again():
    device = Watched(held=100)
    leftovers, reusing = Leftovers(device), Leftovers(device)
    kept = workload()
    reusing.built(kept)
    kept.loss(kept.module, kept.batch).backward()

    device.held = 40
    assert leftovers.held_bytes() == 0
    device.held = 5100
    leftovers.start()
    leftovers.built(workload())
    device.held = 100 + 2 * LAYER + BATCH + 7  # its parameters, gradients and batch
    reusing.start()
    reusing.built(kept)

    assert (leftovers.nbytes, leftovers.model_bytes, leftovers.most_bytes) == (5000, 0, 5000)
    assert (reusing.nbytes, reusing.model_bytes) == (7, 0)


def test_in_a_peak_are_all_bytes_that_were_left_where_they_grew_and_else_those_of_models():
    device = Watched(held=0)
    leftovers = Leftovers(device)
    kept = workload()
    leftovers.built(kept)
    device.held = LAYER + BATCH + 500
    leftovers.start()
    leftovers.built(workload())

    assert leftovers.in_peak(device.held - 1) == LAYER + BATCH + 500
    assert leftovers.in_peak(device.held) == LAYER + BATCH


# --- the bytes of a step


def marked(mark, phases=("zero", "forward", "backward", "optimizer", "end")):
    for phase in phases:
        mark(phase)


def test_the_readings_of_memory_are_those_of_the_spans():
    device = Watched(
        [
            span(50, 60, 50),
            span(50, 90, 80, reserved_bytes=200),
            span(80, 120, 70, reserved_bytes=300, device_bytes=900),
            span(70, 75, 60),
            span(60, 60, 57),
        ]
    )
    training = workload()
    optimizer = torch.optim.SGD(training.module.parameters(), momentum=0.9)

    read, left_bytes = trial.read_memory(training, optimizer, device, marked)

    assert device.resting_bytes == LAYER + BATCH
    assert device.marks == 6  # the phases, and when the step has returned
    assert left_bytes == 57 - 50
    assert read["static_bytes"] == {"parameters": LAYER, "buffers": 0, "inputs": BATCH, "gradients": 0, "optimizer": 0}
    assert (read["start_bytes"], read["saved_bytes"]) == (50, 30)
    assert (read["peak_bytes"], read["peak_phase"], read["peak_gradient_bytes"]) == (120, "backward", 0)
    assert (read["reserved_bytes"], read["device_bytes"]) == (300, 900)
    assert {phase: found.allocated for phase, found in read["phases"].items()} == {
        "forward": 90, "backward": 120, "optimizer": 75,
    }  # fmt: skip
    assert [(found.reserved, found.device) for found in read["phases"].values()] == [
        (200, None), (300, 900), (None, None),
    ]  # fmt: skip


def test_of_micro_batches_the_one_that_saves_most_counts_and_the_first_is_the_start():
    phases = ("zero", "forward", "backward", "forward", "backward", "optimizer", "end")
    device = Watched([span(10, 10, 10), span(10, 30, 20), span(20, 40, 15), span(15, 45, 40), span(40, 44, 15),
                      span(15, 15, 15), span(15, 15, 15)])  # fmt: skip

    training = workload()
    read, _ = trial.read_memory(
        training, torch.optim.SGD(training.module.parameters()), device, partial(marked, phases=phases)
    )

    assert (read["start_bytes"], read["saved_bytes"]) == (10, 25)
    assert (read["peak_bytes"], read["peak_phase"]) == (45, "forward")
    assert read["phases"]["backward"].allocated == 44


def test_a_gradient_that_arrives_ends_a_span_and_is_in_the_next_one():
    module = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 8, bias=False))
    training = workload(module)
    gradient_bytes, steps = LAYER + 8 * 16 * 4, iter(range(9))
    peaks = 1, 2, 3, 9, 4, 1, 0  # of zero, forward, backward in three, optimizer, and what is after the step
    ends = *[0] * 6, gradient_bytes + 3
    device = Watched([span(0, peak, end) for peak, end in zip(peaks, ends, strict=True)])

    def train(mark):
        mark("zero")
        module.zero_grad()
        mark("forward")
        loss = training.loss(module, training.batch)
        mark("backward")
        if next(steps):  # the first step leaves no gradients
            loss.backward()
        marked(mark, ("optimizer", "end"))

    read, left_bytes = trial.read_memory(training, torch.optim.SGD(module.parameters()), device, train)

    assert device.marks == 8  # the phases, two gradients, and when the step has returned
    assert left_bytes == 3  # besides gradients
    assert (read["peak_bytes"], read["peak_phase"]) == (9, "backward")
    assert read["peak_gradient_bytes"] == 8 * 16 * 4  # that of the last layer, which arrives first


@pytest.mark.parametrize(("is_own", "at_peak"), [(True, None), (False, LAYER)])
def test_gradients_of_a_backward_in_the_forward_are_not_known_and_those_that_are_replaced_are_no_more(is_own, at_peak):
    """As where a step takes the gradients of a penalty; or of two backwards, with the first's gradients dropped."""
    training = workload()
    weight, kept = training.module.weight, []
    peaks = (1, 9, 2, 1, 0) if is_own else (1, 2, 3, 4, 5, 9, 1, 0)
    device = Watched([span(0, peak, 0) for peak in peaks])

    def train(mark):
        mark("zero")
        weight.grad = None
        marked(mark, ["forward"] if is_own else ["forward", "backward"])
        training.loss(training.module, training.batch).backward()
        kept.append(weight.grad)  # else its storage might be given again
        weight.grad = None
        mark("backward")
        if not is_own:
            training.loss(training.module, training.batch).backward()
        marked(mark, ("optimizer", "end"))

    read, _ = trial.read_memory(training, torch.optim.SGD([weight]), device, train)

    assert (read["peak_bytes"], read["peak_gradient_bytes"]) == (9, at_peak)


def test_every_storage_between_steps_is_counted_once_and_under_its_first_category():
    shared = nn.Linear(16, 16, bias=False)
    module = nn.Sequential(shared, nn.Linear(16, 16, bias=False))
    module.register_buffer("view", shared.weight.detach()[0])
    module.register_buffer("own", torch.zeros(3))
    training = workload(module)
    optimizer = torch.optim.Adam(module.parameters())
    training.loss(module, training.batch).backward()
    optimizer.step()

    found = trial.static_bytes(training, optimizer)

    counts = 2 * 4  # Adam's steps, of each parameter
    assert found == {
        "parameters": 2 * LAYER,
        "buffers": 12,
        "inputs": BATCH,
        "gradients": 2 * LAYER,
        "optimizer": 4 * LAYER + counts,
    }


TOTAL = 16 * 2**30
UNKNOWN = int(LIBRARY_SHARE * TOTAL)


@pytest.mark.parametrize(
    ("device", "free", "is_near"),
    [("rehearse:t4", UNKNOWN + CONTEXT_BYTES, False), ("rehearse:t4", UNKNOWN + CONTEXT_BYTES - 1, True),
     ("rehearse:t4:context=1", UNKNOWN, False), ("rehearse:t4:context=1", UNKNOWN - 1, True), ("cpu", 0, False)],
)  # fmt: skip
def test_a_rehearsed_step_is_near_the_limit_where_libraries_may_take_what_is_free(monkeypatch, device, free, is_near):
    """The readings are those of the rank with the highest peak, here the second of two."""
    notes, left = {}, SimpleNamespace(held_bytes=lambda: 5, in_peak=lambda before: 2 * before)
    own = {"device_bytes": TOTAL - free, "static_bytes": {"parameters": 4}, "saved_bytes": 7, "peak_bytes": 9}
    higher, group = {**own, "peak_bytes": 10}, Group()
    group.gather = lambda found: [found, (higher, msgspec.structs.replace(found[1], peak_bytes=10))]
    facts, asked = SimpleNamespace(device_bytes=TOTAL), Trial(case=make.case(device=device))
    here = SimpleNamespace(held_bytes=lambda: 0, release=lambda: None, facts=lambda: facts)
    bench = SimpleNamespace(leftovers=left, device=here, group=group, trial=asked, note=notes.__setitem__)
    monkeypatch.setattr(trial, "_own_memory", lambda bench: (own, 3))

    read = trial._memory(bench)

    assert notes.keys() == ({"GCP042"} if is_near else set())
    assert bench.misread_bytes == 2 * 5
    assert read == {**higher, "ranks": read["ranks"]}
    assert [(rank.static_bytes, rank.saved_bytes, rank.peak_bytes, rank.gathered_bytes) for rank in read["ranks"]] == [
        ({"parameters": 4}, 7, peak, 3) for peak in (9, 10)
    ]


@pytest.mark.parametrize(
    ("left", "left_again", "total", "limit", "note"),
    [(9, 5, 100 + 8 * 5, None, "it grows"), (9, 5, 100 + 8 * 5 - 1, None, "would not fit"), (9, 0, MIB, None, None),
     (5, 9, 100 + 8 * 5, 8.0, "it grows"), (9, None, 100 + 8 * 9 - 1, None, "would not fit"), (0, 9, MIB, None, None),
     (9, None, None, None, "it grows"), (9, 5, MIB, 7.9, None)],
)  # fmt: skip
def test_memory_is_looked_at_for_growth_where_every_step_left_bytes_and_more_fit(
    monkeypatch, left, left_again, total, limit, note
):
    """On a hollow device the step that counts what operators do tells too. A step took a second, and 8 are to come."""
    bench = Bench(Trial(case=make.case("all", model=Choice("mlp"))), lambda name: None)
    bench.device = SimpleNamespace(
        is_hollow=True, facts=lambda: SimpleNamespace(device_bytes=total), held_bytes=lambda: 0, release=lambda: None
    )
    bench.limit, bench.spent = lambda: limit, lambda: 1.0
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    replaced = {
        "counts_after_memory": lambda one: one is bench,
        "read_memory": lambda workload, optimizer, device, step: ({"peak_bytes": 100}, left),
        "counted_step": lambda one, built, calls, count: {"calls": len(calls), "mlp": built.case.model.name},
        "memory_growth.left_by": lambda workload, optimizer, device, step: (step(), left_again),
        "memory_growth.read": lambda *step, **how: f"it grows {how} {len(step)}",
    }
    for name, function in replaced.items():
        monkeypatch.setattr(f"profiler.measuring.trial.{name}", function)

    own, gathered = trial._own_memory(bench)

    assert (own, gathered) == ({"peak_bytes": 100, "calls": 5, "mlp": "mlp"}, None)
    (text,) = [one.text for one in bench.all_notes()] or [None]
    assert note in text if note else text is None
    assert note != "it grows" or text == "it grows {'with_operators': True, 'is_alone': True} 4"


# --- what operators do


def test_a_call_is_one_word_with_types_shapes_and_strides():
    mm = torch.ops.aten.mm.default
    matrix = torch.ones(2, 3)

    assert operators.call_signature(mm, (matrix, matrix.T), None) == "aten.mm(float32[2, 3], float32[3, 2] by [1, 3])"
    assert operators.call_signature(
        torch.ops.aten.sum.dim_IntList, (matrix, [0, 1], True), {"dtype": torch.float64}
    ) == ("aten.sum.dim_IntList(float32[2, 3], [0, 1], True, dtype=torch.float64)")
    assert operators.call_signature(torch.ops.aten.cat.default, ((matrix.int(), matrix.int()),), {}) == (
        "aten.cat([int32[2, 3], int32[2, 3]])"
    )


def test_what_an_operator_hides_is_the_most_that_it_took_besides_what_was_there_before_or_after():
    small, large = torch.ones(2), torch.ones(3)

    def run(mark):
        for tensor in (small, large, small, small):
            torch.relu(tensor)

    between = span(0, 999, 0)
    device = Watched(
        [span(10, 25, 20), between, span(10, 12, 12), between, span(20, 27, 5), between, span(0, 6, 0)]
    )  # fmt: skip

    assert operators.hidden_bytes(device, run) == {"hidden_bytes": {"aten.relu(float32[2])": 7}}
    assert device.marks == 8  # of the second step alone: the first one is not followed
    assert device.resting_bytes == 0


def test_the_flops_of_a_layer_are_those_of_its_products_and_a_recompute_is_in_the_backward():
    product = 2 * 4 * 16 * 16
    plain = workload()
    recomputed = msgspec.structs.replace(
        plain, loss=lambda module, batch: checkpoint(lambda: module(batch).sin(), use_reentrant=False).sum()
    )

    read, again = (operators.count(partial(train_step, one, None)).readings() for one in (plain, recomputed))

    assert read == {"forward_flops": product, "backward_flops": product}  # of the weight alone
    assert again == {"forward_flops": product, "backward_flops": 2 * product}


def test_attention_with_grouped_heads_has_the_flops_of_its_products_measured_and_traced():
    """Of four heads of queries, and two of keys and values."""
    product = 2 * (2 * 4) * 5 * 7 * 8  # for each sample and head of queries, (5, 8) @ (8, 7)

    def attention(module, batch):
        query, key, value = (part * module.weight for part in batch)
        return nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True).sum()

    def build() -> Workload:
        batch = tuple(torch.ones(shape) for shape in ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8)))
        return Workload(module=nn.Linear(1, 1, bias=False), batch=batch, loss=attention)

    read = operators.count(partial(train_step, build(), None)).readings()
    _, traced, _ = trace_case(make.case("none", device="fake:cpu"), build=build)

    assert read == {"forward_flops": 2 * product, "backward_flops": 5 * product}
    assert sum(operator.flops for operator in traced.operators) == 7 * product


# --- the seconds of a step


def test_the_seconds_of_phases_are_of_one_step_however_many_a_sample_has(monkeypatch):
    device, on_core = Scripted([1.0, 3e-4, 8e-3, 4e-3]), count(100.0, 0.5)
    monkeypatch.setattr("time.thread_time", lambda: next(on_core))

    (read,) = time.read(device, step, [None], warmup=1, samples=2)

    assert read["steps_per_sample"] == 4  # of 0.3 ms, in a millisecond
    assert read["warmup_seconds"] == (1.0, 3e-4)
    assert read["step_seconds"] == (2e-3, 1e-3)
    assert read["forward_seconds"] == read["backward_seconds"] == (1e-3, 5e-4)
    assert read["optimizer_seconds"] == (0, 0)
    assert read["processor_seconds"] == (0.125, 0.125)  # half a second for four steps
    assert (read["stopped"], read["host_share"]) == ("samples", None)


@pytest.mark.parametrize(("until", "taken", "warmed"), [(None, 3, 3), (8.0, 3, 3), (4.0, 1, 2), (2.3, 1, 1)])
def test_no_step_begins_that_would_not_end_in_time(until, taken, warmed):
    now = [0.0]

    def timed(mark):
        step(mark)
        now[0] += 1.0

    (read,) = time.read(Scripted([1.0] * 6), timed, [None], warmup=2, samples=3, until=until, clock=lambda: now[0])

    assert len(read["warmup_seconds"]) == warmed
    assert len(read["step_seconds"]) == taken
    assert read["stopped"] == ("samples" if taken == 3 else "limit")


def test_cpu_time_of_other_ranks_is_not_that_of_other_programs(monkeypatch):
    """Of two ranks the other one has used 7 seconds of the CPU for every look at it."""
    monkeypatch.setattr("time.process_time", lambda: 64.0)
    looks = iter(range(7, 99, 7))
    group = Group()
    group.size, group.gather = 2, lambda found: [found, float(next(looks)) if isinstance(found, float) else found]

    def conditions(others):
        device = SimpleNamespace(conditions=lambda: Conditions(at_seconds=1.0, others_seconds=others))
        return time._conditions(device, group, 0.0).others_seconds

    assert [conditions(10.0), conditions(10.0), conditions(None)] == [3.0, 0.0, None]
    assert time._spent_elsewhere(group) == 28.0
    assert time._spent_elsewhere(Group()) == 0.0
