"""Steps that others recorded on a GPU, beside what is traced of them without one: see histories/README.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from unittest import mock

import msgspec
import pytest
import torch
from torch import nn

from profiler.core.allocator_history import GRANULE
from profiler.core.case import Choice, Trial
from profiler.core.trace_data import Allocation, Trace, as_asked
from profiler.predicting.prediction import follow_case
from profiler.predicting.trace import in_place
from profiler.predicting.trace.allocator import CachingAllocator, MemoryBlock, Settings, round_up
from profiler.training import assemble
from profiler.training.workload import Workload
from tests import make
from tests.history import FREED, read

HISTORIES = Path(__file__).parent / "histories"
MIB = 2**20
CUBLAS = 4 * MIB, 8519680  # bytes that cuBLAS kept for a thread: in 2022, and since
BRIEFLY = 2  # events
LOGITS = 8 * 1000 * 4  # bytes: the ResNet's script held them until its end
STATIC, STEP = 122, 124  # places of the ResNet: parameters and buffers, then images and labels, then the step
MEANS = 226  # of the last feature map
RESNET = "torchvision:resnet18"


class Recording(msgspec.Struct, frozen=True):
    """What an allocator did: places in `sizes`, each named when it is taken and again when it is let go. Bytes."""

    sizes: tuple[int, ...]
    actions: tuple[int, ...]

    def taken(self, first: int) -> tuple[int, ...]:
        """The places from `first` on, but for what one operator took while it ran and what cuBLAS keeps."""
        seen = {place: [index for index, one in enumerate(self.actions) if one == place] for place in set(self.actions)}
        brief = {place for place, (begin, *end) in seen.items() if end and end[0] - begin <= BRIEFLY}
        return tuple(one for one in sorted(seen) if one >= first and one not in brief and self.sizes[one] not in CUBLAS)

    def live(self, places: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Each of these places as it is taken, and the bytes of those of them that are there then."""
        there: set[int] = set()
        for place in self.actions:
            if place in there:
                there.remove(place)
            elif place in places:
                there.add(place)
                yield place, sum(map(rounded, (self.sizes[one] for one in there)))


def rounded(nbytes: int) -> int:
    return round_up(nbytes, GRANULE)


@cache
def resnet() -> Recording:
    return msgspec.json.decode((HISTORIES / "without_addresses" / "resnet18.json").read_bytes(), type=Recording)


@cache
def mlp() -> Recording:
    sizes: list[int] = []
    actions: list[int] = []
    there: dict[int, int] = {}
    for event in read(HISTORIES / "mlp.json"):
        if event.action == "alloc":
            there[event.address] = len(sizes)
            actions.append(len(sizes))
            sizes.append(event.size)
        elif event.action in FREED:
            actions.append(there.pop(event.address))
    return Recording(tuple(sizes), tuple(actions))


@cache
def traced_resnet(batch_size: int) -> Trace:
    """With gradients summed as in 2022, not yet in place: eight sums."""
    case = make.case(
        model=Choice(RESNET), optimizer=Choice("momentum"), batch_size=batch_size, device="fake:cuda", verify="off"
    )
    with mock.patch.object(in_place, "SUM", None):
        return as_asked(follow_case(Trial(case=case)).trace)


@cache
def traced_mlp() -> Trace:
    def loss(module: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return nn.functional.mse_loss(module(batch[0]), batch[1])

    def build() -> Workload:
        module = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1))
        return Workload(module=module, batch=(torch.randn(64, 10), torch.randn(64, 1)), loss=loss, blocks=("",))

    with mock.patch.object(assemble, "_from_catalogue", return_value=build):
        return follow_case(Trial(case=make.case(model=Choice("mlp"), device="fake:cuda", verify="off"))).trace


def born(trace: Trace) -> list[Allocation]:
    """What the step itself takes, in order."""
    return sorted((one for one in trace.allocations if one.born), key=lambda one: one.born)


def sizes(allocations: Iterable[Allocation]) -> list[int]:
    return [one.nbytes for one in allocations]


@pytest.mark.slow
def test_a_resnet_takes_what_a_gpu_was_seen_to_take_in_the_same_order():
    recording, trace = resnet(), traced_resnet(8)
    state = [one for one in trace.allocations if one.category == "optimizer"]  # made in the first step, after all else

    static = [one for one in trace.allocations if one.category in ("parameters", "buffers")]
    found = [rounded(recording.sizes[place]) for place in recording.taken(STEP)]

    assert sorted(sizes(static)) == sorted(map(rounded, recording.sizes[:STATIC]))
    assert found == sizes(born(trace)) + sizes(state)
    assert found != sizes(born(traced_resnet(1))) + sizes(state)


def test_a_resnet_holds_what_a_gpu_was_seen_to_hold():
    recording, trace = resnet(), traced_resnet(8)
    taken = born(trace)

    found = list(recording.live(recording.taken(STEP)[: len(taken)]))

    assert len(found) == len(taken) > 200
    for index, (_, held) in enumerate(found):
        before = sum(one.nbytes for one in taken[: index + 1] if one.died >= taken[index].born)
        assert held - before == (rounded(LOGITS) if taken[index].phase == "backward" else 0)


def test_steps_of_an_mlp_take_what_a_gpu_was_seen_to_take_in_the_same_order():
    recording = mlp()
    one_step = sizes(born(traced_mlp()))

    found = [rounded(recording.sizes[place]) for place in recording.taken(6)]

    assert found == one_step * 5


def test_an_allocator_holds_after_forwards_what_snapshots_of_a_gpu_say():
    """Allocated and reserved bytes are memory.svg's, and what is reserved later compare.svg's."""
    allocator = CachingAllocator(Settings())
    static = [allocator.allocate(nbytes) for nbytes in resnet().sizes[:STATIC]]

    first = forward(allocator, batch_size=1)
    after_one = sum(block.size for block in (*static, *first)), allocator.reserved
    forward(allocator, batch_size=8)

    assert after_one == (69_086_208, 111_149_056)
    assert allocator.reserved == 111_149_056 + 188_743_680


def forward(allocator: CachingAllocator, *, batch_size: int) -> list[MemoryBlock]:
    """From the images to the logits, as in the snapshots' script; what is held after it."""
    trace = traced_resnet(batch_size)
    images = allocator.allocate(batch_size * 3 * 224 * 224 * 4)
    hidden = iter(convolutions())
    held: dict[int, MemoryBlock] = {}
    for number, operator in enumerate(trace.operators, 1):
        for index, one in enumerate(trace.allocations):
            if one.born == number:
                held[index] = allocator.allocate(one.nbytes)
        if operator.name == "aten.addmm":
            allocator.free(allocator.allocate(MIB))  # cuBLASLt's
            return [images, *held.values()]
        if operator.name == "aten.convolution":
            allocator.free(allocator.allocate(next(hidden)))
        for index in [index for index in held if trace.allocations[index].died == number]:
            allocator.free(held.pop(index))
    raise AssertionError("a ResNet ends with a linear layer")


def convolutions() -> list[int]:
    """What each convolution of the recorded forward took while it ran, in bytes."""
    recording = resnet()
    first, last = (recording.actions.index(place) for place in (STEP, MEANS))
    pairs = zip(recording.actions[first:last], recording.actions[first + 1 : last], strict=False)
    return [recording.sizes[one] for one, other in pairs if one == other]
