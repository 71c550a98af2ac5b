"""Inputs of checkpoints in host memory: the values are those of plain steps, the bytes those of arithmetic."""

import copy

import msgspec
import pytest
import torch
from torch import nn

from profiler.core import plan_file
from profiler.core.case import Choice
from profiler.core.plan_file import PlanFile, Segment
from profiler.core.record import Record
from profiler.planning.plan_code import emit
from profiler.training import memory_levers as memory
from profiler.training.block_segments import checkpoint_segments
from profiler.training.memory_levers import offload_inputs
from profiler.training.strategies import carry_out, fingerprint
from profiler.training.workload import Workload
from tests.conftest import measured
from tests.hollow import LEAVE, OPEN

PASSES = ("equality", "memory")


def workload() -> Workload:
    torch.manual_seed(0)
    width = 16
    blocks = [nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1)) for _ in range(8)]
    return Workload(
        module=nn.Sequential(*blocks, nn.Linear(width, 4)),
        blocks=tuple(map(str, range(9))),
        batch=torch.randn(6, width),
        loss=lambda module, batch: module(batch).square().mean(),
    )


def trained(workload: Workload, steps: int = 50) -> list[torch.Tensor]:
    optimizer = torch.optim.AdamW(workload.module.parameters())
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        loss = workload.loss(workload.module, workload.batch)  # is there until the next is
        loss.backward()
        optimizer.step()
    return [*workload.module.parameters()]


def same(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def under(strategy: str, **fields) -> Record:
    levers = (Choice("offload-inputs:least=1"),)
    return measured("transformer:layers=3,width=8,sequence=4", strategy, passes=PASSES, levers=levers, **fields)


@pytest.mark.parametrize("strategy", ["selective:save=attention", "recursive"])
def test_gradients_with_the_lever_are_those_without_to_the_bit(strategy):
    record = under(strategy)

    assert (record.outcome, record.equality.gradients_equal, record.equality.loss_equal) == ("ok", True, True)
    assert "host memory" in " ".join(note.text for note in record.notes)


def test_a_stale_fetch_is_found(monkeypatch):
    monkeypatch.setattr(memory.Sent, "back", lambda self: torch.full_like(self._host, 0.5))

    assert under("all").outcome == "invalid"


def test_fifty_steps_a_second_backward_and_a_copy_of_the_module_are_those_without_checkpoints_to_the_bit():
    offloaded = workload()
    checkpoint_segments(offloaded, [[0, 1], [2], [3, [4], 5], [7]])
    remark = offload_inputs(offloaded, {"2": "3", "3": "6", "7": "8"})
    expected = [2 * parameter.grad for parameter in graded(workload(), 1)]

    for module in (offloaded.module, copy.deepcopy(offloaded.module)):
        assert same((parameter.grad for parameter in graded(offloaded, 2, module)), expected)
    assert same(trained(offloaded), trained(workload()))
    assert "1.12 KiB" in remark().text  # three inputs of 6 x 16 floats; buffers are kept from step to step


def graded(workload: Workload, times: int, module: nn.Module | None = None) -> list[torch.Tensor]:
    torch.manual_seed(1)
    module = module or workload.module
    loss = workload.loss(module, workload.batch)
    for _ in range(times):
        loss.backward(retain_graph=True)
    return [*module.parameters()]


def planned(*segments: Segment, schema: int = plan_file.OFFLOADING) -> PlanFile:
    fresh = workload()
    return PlanFile(schema=schema, plan="", segments=segments, fingerprint=fingerprint(fresh.module, fresh.blocks))


def test_a_plan_file_carries_what_waits_in_host_memory(tmp_path):
    plan = planned(Segment(blocks=("1", "2"), fetched_at="3"), Segment(blocks=("4",), save="matmul", fetched_at="6"))
    assert b"fetched_at" not in msgspec.json.encode(planned(Segment(blocks=("1",)), schema=1))  # as before
    plan_file.write(plan, tmp_path / "plan.json")
    offloaded = workload()

    applied = carry_out(offloaded, plan_file.read(tmp_path / "plan.json"))

    assert plan_file.words(plan) == "[1-2]:host 4:matmul:host"
    assert same(trained(offloaded), trained(workload()))
    assert "768 B" in applied.remark().text


@pytest.mark.parametrize(
    ("segments", "schema"),
    [
        ((Segment(blocks=("1", "2"), fetched_at="2"),), 2),  # not after it
        ((Segment(blocks=(Segment(blocks=("1",), fetched_at="3"), "2")),), 2),
        ((Segment(blocks=("1",), fetched_at="2"),), 1),
    ],
)
def test_a_plan_file_with_a_fetch_that_cannot_be_is_refused(segments, schema):
    with pytest.raises(ValueError, match=r"fetched|schema"):
        planned(*segments, schema=schema)


def test_emitted_code_does_the_same_without_gcprof():
    inside = Segment(blocks=("1", Segment(blocks=("2",)), "3"), fetched_at="4")
    segments = inside, Segment(blocks=("5",), save="matmul", fetched_at="6"), Segment(blocks=("7",))
    code = emit(planned(*segments), "python")
    pasted, space, copied = workload(), {}, []
    exec(code, space)
    space["apply_plan"](pasted.module)
    copy = space["HostMemory"].copy
    space["HostMemory"].copy = lambda own, to, *given: copied.append(to.nbytes) or copy(own, to, *given)

    assert "profiler" not in code
    assert same(trained(pasted), trained(workload()))
    assert copied == [6 * 16 * 4] * 4 * 50  # two blocks' inputs there and back, in each step


# --- on a device: bytes by PyTorch's own allocator, and the order of copies by PyTorch's sanitizer

STEP = """
import sys, torch
from torch import nn
import torch.utils.checkpoint
from profiler.training import memory_levers as memory
from profiler.training.memory_levers import offload_inputs
from profiler.training.block_segments import checkpoint_segments
from profiler.training.workload import Workload

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1024, 1024)
    def forward(self, x):
        return torch.tanh(self.linear(x))

def make(fetched_at):
    module = nn.Sequential(*(Block() for _ in range(6))).cuda()
    made = Workload(module=module, blocks=tuple("012345"), batch=torch.randn(1024, 1024, device="cuda"), loss=None)
    checkpoint_segments(made, [[index] for index in range(6)])
    offload_inputs(made, fetched_at, least=1 << 20)
    return made

ALL = {"1": "2", "2": "3", "3": "4", "4": "5"}  # the first input is the batch, the last has nothing after it
"""

BYTES = """
def bytes_of(fetched_at):
    made = make(fetched_at)
    made.module(made.batch).sum().backward()  # gradients and cuBLAS's workspace are there
    before = torch.cuda.memory_allocated()
    loss = made.module(made.batch).sum()
    held = torch.cuda.memory_allocated() - before
    torch.cuda.reset_peak_memory_stats()
    loss.backward()
    return held, torch.cuda.max_memory_allocated() - before
found = [bytes_of({}), bytes_of(ALL)]
"""

SANITIZED = """
from torch.cuda import _sanitizer
_sanitizer.enable_cuda_sanitizer()
seen = _sanitizer.cuda_sanitizer.dispatch.event_handler
forget = seen.tensors_accessed.delete_tensor

def freed(pointer):  # a race of its own: the memory may become the next tensor before all its uses ended
    accesses = [seen.tensors_accessed.get_write(pointer), *seen.tensors_accessed.get_reads(pointer)]
    if not all(seen.syncs.is_ordered_after(0, one.seq_num, one.stream) for one in filter(None, accesses)):
        print("freed too early", flush=True)
    forget(pointer)

seen.tensors_accessed.delete_tensor = freed
"""
SANITIZED_STEPS = """
made = make(ALL)
with torch.utils.checkpoint.set_checkpoint_early_stop(False):  # an early stop is an exception, in which hooks fail
    for _ in range(3):
        made.module(made.batch).sum().backward()
print("done", flush=True)
"""
PLANTED = {
    "none": "",
    "a fetched tensor is read before it is there": """
def back(self):
    self.fetch()
    (made, _), self._fetched = self._fetched, None
    return made
memory.Sent.back = back
""",
    "memory is freed before its copy has landed": """
def land(self):
    self._tensor = None
memory.Sent.land = land
""",
}


@pytest.mark.slow
def test_what_waits_on_the_host_is_not_on_the_device(hollow):
    (plain, plain_peak), (held, peak) = hollow.python(STEP + BYTES)

    mebi = 1 << 20
    assert plain - held == 4 * 4 * mebi
    assert plain_peak - peak == 3 * 4 * mebi  # while the last block runs backward, the input before it is fetched


@pytest.mark.slow
@pytest.mark.parametrize("fault", PLANTED)
def test_the_sanitizer_finds_every_missing_wait_and_none_that_is_there(hollow, fault):
    done = hollow.run(OPEN + STEP + SANITIZED + PLANTED[fault] + SANITIZED_STEPS + LEAVE)

    reported = "CSAN detected a possible data race" in done.stderr or "freed too early" in done.stdout
    assert reported is (fault != "none"), done.stderr
    assert reported or "done" in done.stdout
