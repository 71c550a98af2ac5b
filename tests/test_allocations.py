"""A step that is recorded on a CUDA device, against its own tensors and the allocator's counters."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
import torch
from torch import nn

from profiler.core.case import Choice
from profiler.measuring.meters import allocations
from profiler.measuring.meters.allocations import MODULE, PHASE
from profiler.training.assemble import assemble
from tests import make

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device (gpu)")]
PHASES = ["zero", "forward", "backward", "optimizer", "end"]


class Recorded:
    """Two steps of a model, of which the second is recorded."""

    def __init__(self, model: str, optimizer: str = "adamw", *, with_modules: bool = True) -> None:
        chosen = {"model": Choice(model), "optimizer": Choice(optimizer), "batch_size": 4, "device": "cuda:0"}
        with allocations.recording_lines():
            built = assemble(make.case(**chosen))
            self.workload, self.module = built.workload, built.workload.module
            self.optimizer, step = built.trainer()
            step(lambda phase: None)
            self.gradients_before = {parameter.grad.data_ptr() for parameter in self.module.parameters()}
            self.live_before = torch.cuda.memory_allocated()
            self.of = allocations.record(self.workload, self.optimizer, step, with_modules=with_modules)

    def labels(self) -> list[str]:
        """All labels of the recording, by the time at which they begin."""
        found = []
        left = list(self.of.tree)
        while left:
            event = left.pop()
            left += event.children
            if event.name.startswith((MODULE, PHASE)):
                found.append((event.start_time_ns, event.name))
        return [name for _, name in sorted(found)]


def blocks(nbytes: int) -> int:
    return -(-nbytes // 512) * 512


def test_what_lives_between_steps_is_known_by_its_address():
    recorded = Recorded("cifar-resnet:depth=1")
    module, optimizer, held = recorded.module, recorded.optimizer, recorded.of.held_before

    owners = {name: name.rpartition(".")[0] for name, _ in [*module.named_parameters(), *module.named_buffers()]}
    for name, parameter in module.named_parameters():
        assert held[parameter.data_ptr()] == ("parameters", owners[name])
        moments = [value for key, value in optimizer.state[parameter].items() if key != "step"]
        assert {held[moment.data_ptr()] for moment in moments} == {("optimizer", owners[name])}
        assert recorded.of.held_after[parameter.grad.data_ptr()] == ("gradients", owners[name])
    for name, buffer in module.named_buffers():
        assert held[buffer.data_ptr()] == ("buffers", owners[name])
    assert {held[part.data_ptr()] for part in recorded.workload.batch} == {("inputs", "")}
    assert {address for address, (kind, _) in held.items() if kind == "gradients"} == recorded.gradients_before
    assert set(held) <= {block.address for block in recorded.of.before}
    assert sum(block.nbytes for block in recorded.of.before) == recorded.live_before


def test_the_events_lead_from_the_blocks_before_to_the_allocators_peak():
    recorded = Recorded("mlp:width=64,depth=3").of

    sizes = {block.address: block.nbytes for block in recorded.before}
    changes = []
    for event in recorded.events:
        if event.is_allocation:
            sizes[event.address] = blocks(event.requested)
            changes.append(sizes[event.address])
        else:
            changes.append(-sizes.pop(event.address))
    assert max(accumulate(changes, initial=sum(block.nbytes for block in recorded.before))) == recorded.peak_bytes
    assert any(event.line for event in recorded.events)


def test_phases_are_marked_in_order_with_the_events_before_them():
    recorded = Recorded("mlp:width=64,depth=3")
    names, places = zip(*recorded.of.marks, strict=True)

    assert list(names) == PHASES
    assert [label for label in recorded.labels() if label.startswith(PHASE)] == [PHASE + name for name in PHASES]
    assert all(before <= after for before, after in pairwise((0, *places, len(recorded.of.events))))
    zero, forward, backward, optimizer, _ = places
    freed = recorded.of.events[zero:forward]
    assert {event.address for event in freed if not event.is_allocation} == recorded.gradients_before
    assert any(event.is_allocation for event in recorded.of.events[forward:backward])
    assert any(event.is_allocation for event in recorded.of.events[backward:optimizer])


def test_gradients_are_noted_as_they_arrive_last_layer_first():
    recorded = Recorded("mlp:width=64,depth=3")
    module, places = recorded.module, dict(recorded.of.marks)

    of = {address: (at, owner) for address, at, owner in recorded.of.gradients}
    for name, parameter in module.named_parameters():
        at, owner = of[parameter.grad.data_ptr()]
        assert owner == name.rpartition(".")[0]
        assert places["backward"] < at <= places["optimizer"]
    assert len(of) == len(list(module.parameters()))
    times = [at for _, at, _ in recorded.of.gradients]
    assert times == sorted(times)
    assert recorded.of.gradients[-1][2] == next(iter(module.named_parameters()))[0].rpartition(".")[0]
    assert not any(parameter._post_accumulate_grad_hooks for parameter in module.parameters())


@pytest.mark.parametrize("with_modules", [True, False])
def test_every_module_is_labelled_with_its_full_name(with_modules):
    call = nn.Module.__call__
    recorded = Recorded("mlp:width=64,depth=3", with_modules=with_modules)

    labels = {label for label in recorded.labels() if label.startswith(MODULE)}
    names = {MODULE + name for name, _ in recorded.module.named_modules()}
    assert labels == (names if with_modules else set())
    assert nn.Module.__call__ is call


def test_workspaces_are_the_blocks_that_cublas_lets_go_of(monkeypatch):
    kept = [torch.empty(4096, device="cuda")]  # PyTorch's own are kept in some of its versions only
    address = kept[0].data_ptr()
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", kept.clear)

    assert Recorded("mlp:width=64,depth=3").of.workspaces == {address}


def test_lines_are_remembered_only_while_a_step_is_recorded():
    with allocations.recording_lines():
        within = torch.empty(4096, device="cuda")
    after = torch.empty(8192, device="cuda")

    lines = {block.address: block.line for block in allocations._blocks_in_use()}
    assert lines[within.data_ptr()].startswith("test_allocations.py:")
    assert not lines[after.data_ptr()]
