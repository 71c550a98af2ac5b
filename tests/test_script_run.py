"""`gcprof run -- COMMAND` on the CPU: scripts held to torch.profiler, to their own gradients, and to planted faults."""

import subprocess
import sys

import msgspec
import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from profiler.core import gpu_specs
from profiler.scripts.launch import ROUNDING, compared, measure, run
from profiler.scripts.report import Asked, Process, Variant, estimated_seconds
from profiler.views.tables.script import ratio_to, step_seconds
from tests.scripts import by_hand
from tests.scripts.runs import answered, copied, environment, rehearsed

KINDS = {"all": "random", "sqrt": "detached", "every": "scaled", "first": "skipped", "recursive": "stale"}  # planted.py
IN_ORDER = {"imagenet_like": ("-j", "1")}  # of several workers a batch may come before its turn, and is held then


ON_CPU = ("run", "--device", "cpu", "--json", "--quiet", "--rounds")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The scripts, in the folder and the environment where this process measures them."""
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return copied(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["growing", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("nanogpt_like", "gan", *IN_ORDER))]
)
def test_phases_peak_and_gradients_are_as_torch_profiler_and_the_script_itself_say(name, folder):
    lines = []
    more = IN_ORDER.get(name, ())
    words = (sys.executable, f"{name}.py", *more)
    text = (folder / f"{name}.py").read_text()
    (folder / "by_hand.py").write_text(by_hand.marked_on_cpu(name, text))

    session = measure(
        Asked(words=words, steps=1000), ["none"], rounds=0, values={}, say=lambda text: None, on_line=lines.append
    )
    said = subprocess.run([sys.executable, "by_hand.py", *more], stdout=-1, text=True, check=True).stdout

    (variant,) = session.variants
    (process,) = variant.processes
    assert session.exit_code == 0
    assert variant.equality.verdict == "equal"
    told = [msgspec.to_builtins(phase) for phase in process.phases]
    assert by_hand.told({"phases": told}) == by_hand.peaks(by_hand.rows(said))
    taken = (row for row in lines if row["kind"] == "gradients")
    gradients = {f"{row['optimizer']}.{row['step']}": row["digests"] for row in taken}
    assert gradients == by_hand.digests(said)
    assert any(digest for digest in gradients["0.1"].values())


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "first_stale"), [("nanogpt_like", 2), ("gan", 1)])
def test_each_planted_fault_is_found(name, first_stale, folder):
    words = (*ON_CPU, "0", "--steps", "3", "--strategies", ",".join(KINDS))

    done = answered(*words, command=("python", "planted.py", f"{name}.py"), cwd=folder)

    first, *others = (variant["equality"] for variant in done.document["variants"])
    assert done.exit_code == 1
    assert first["verdict"] == "equal"
    assert [equality["verdict"] for equality in others] == ["differ"] * len(KINDS)
    steps = [equality["step"] for equality in others]  # a generator steps after its critic
    assert steps == [first_stale if kind == "stale" else 1 for kind in KINDS.values()]


@pytest.mark.slow
def test_rounds_have_the_seconds_of_each_step_and_files_of_the_user_stay(folder):
    (folder / "resume.pt").write_bytes(b"weights of last week")

    done = answered(*ON_CPU, "1", command=("python", "resume.py"), cwd=folder)

    (variant,) = done.document["variants"]
    assert done.exit_code == 0, done.said
    assert [len(seconds) for seconds in variant["seconds"]] == [1 + 2]  # of two optimizers, of 2 and 3 steps
    assert all(second > 0 for seconds in variant["seconds"] for second in seconds)
    assert (folder / "resume.pt").read_bytes() == b"weights of last week"
    assert not variant["is_cut"]


def gradients(digests, **differences):
    row = {"kind": "gradients", "key": "0", "optimizer": 0, "step": 1}
    return {"0": [{**row, "digests": digests, "differences": differences}]}


@pytest.mark.parametrize(
    ("difference", "verdict"), [(ROUNDING, "equal within rounding"), (2 * ROUNDING, "differ"), (None, "differ")]
)
def test_only_a_difference_that_is_known_to_be_small_is_rounding(difference, verdict):
    none = gradients({"a": "1", "b": "2"})

    comparison = compared(none, none, gradients({"a": "1", "b": "3"}, b=difference))

    assert (comparison.verdict, comparison.parameter, comparison.num_differing) == (verdict, "b", 1)
    assert compared(none, none, gradients({"a": "1"})).verdict == "differ"


def test_the_ratio_is_of_steps_of_the_same_number_and_its_range_of_the_rounds():
    plain = [[9.0, *[1.0, 3.0] * 5], [9.0, *[1.0, 3.0] * 5]]
    slower = [[9.0, *[1.5, 4.5] * 5], [9.0, *[2.0, 6.0] * 5]]

    ratio = ratio_to(slower, plain)

    assert ratio.interval == pytest.approx((1.5, 2.0))
    assert ratio.ratio == pytest.approx(1.75)
    assert step_seconds([[9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0]]) == 1.0


def test_a_rank_that_missed_another_is_not_the_first_that_died():
    """The other one's death may have been seen later."""
    facts = {"number": 1, "num_steps": 9, "peak_bytes": None, "reserved_bytes": None, "module": "Net", "phases": ()}
    text = "RuntimeError: NCCL AllGather failed: another rank is missing (train.py:3)"
    missed = Process(**facts, rank=0, outcome="failed", detail=text, died=1.0)
    killed = Process(**facts, rank=1, outcome="crashed", detail="it ended without a word", died=2.0)

    for processes, first in (((missed, killed), killed), ((missed,), missed)):
        whole = Variant(words={}, gpu_bytes=None, context_bytes=0, outcome="failed", processes=processes)
        assert whole.first_dead is first


@pytest.mark.slow
@pytest.mark.parametrize("how", ["os.kill(os.getpid(), 9)", "raise ValueError"])
def test_the_rank_that_ended_without_a_word_is_not_the_one_that_its_launcher_ended(hollow, here, how):
    text = f"import os, time, torch\nif os.environ['RANK'] == '0':\n    {how}\ntime.sleep(100)\n"
    (here / "train.py").write_text(text)
    words = ("torchrun", "--nproc-per-node", "2", "--master-port", "29763", "train.py")

    ended = run(Asked(words=words, gpus=gpu_specs.rehearsed("t4")), on_line=lambda line: None)

    assert ended.lost == ("0" if "kill" in how else None)
    assert ended.exit_code == 1  # of torchrun, which is found without an active environment too


def test_python_is_gcprofs_own_where_the_system_has_none_of_that_name(tmp_path, monkeypatch):
    alone = tmp_path / "python3"
    alone.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(alone))

    ended = run(Asked(words=("python", "-c", "raise SystemExit(7)")), on_line=lambda line: None)

    assert ended.exit_code == 7


@pytest.mark.nightly
def test_on_a_gpu_the_peaks_are_those_of_a_rehearsal(hollow, folder):
    """By the hollow device, whose values and times mean nothing."""
    gpu = gpu_specs.rehearsed("t4")

    asked = Asked(words=("python", "vae.py"), gpus=gpu, steps=4)
    session = measure(asked, ["none"], rounds=1, values={}, say=lambda text: None)
    done = rehearsed(("python", "vae.py"), "--steps", "4", cwd=folder)

    (variant,) = session.variants
    (process,) = done.document["variants"][0]["processes"]
    peaks = [phase["peak_bytes"] for phase in process["phases"]]
    assert variant.words["device"] == "Hollow Tesla T4"
    assert [phase.peak_bytes for phase in variant.processes[0].phases] == peaks
    assert len(variant.seconds[0]) == 3


# ---- the estimated time of a step


BLOCKS = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        blocks = (nn.Sequential(nn.Linear(96, 384), nn.ReLU(), nn.Linear(384, 96)) for _ in range(4))
        self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(96, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)
"""
SCRIPT = """
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
mask = (torch.arange(640) % 3 == 0).view(64, 10).cuda()  # the backward reads how many are true
for _ in range(3):
    out = model(torch.ones(64, 96).cuda())
    [torch.full((128,), 2**30, dtype=torch.int32).cuda() for _ in range(99)]  # is left in memory
    torch.zeros_like(out).masked_scatter(mask, out[mask]).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        model(torch.ones(64, 96).cuda())  # an evaluation, which is no part of a step
"""
RATES = gpu_specs.find("t4")


def flops_of_step():
    """Return the FLOPs of a checkpointed step by PyTorch's counter, on the CPU, with PyTorch's own checkpoints."""
    scope = {}
    exec(BLOCKS, scope)
    model = scope["Model"]()
    x = torch.ones(64, 96)
    with FlopCounterMode(display=False) as counter:
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        model.head(x).square().mean().backward()
    return counter.get_total_flops()


@pytest.mark.slow
def test_flops_of_the_second_step_are_those_that_pytorch_counts(hollow, here):
    (here / "train.py").write_text(f"{BLOCKS}\n{SCRIPT}")
    asked = Asked(words=(sys.executable, "train.py"), gpus=gpu_specs.rehearsed("t4"), strategy="all")

    ended = run(asked, on_line=lambda line: None)

    (lines,) = ended.lines.values()
    (work,) = (line for line in lines if line["kind"] == "work")
    counted = sum(flops * num for _, _, flops, _, num in work["calls"])
    assert counted == flops_of_step()
    assert {kind for _, kind, flops, _, _ in work["calls"] if flops} == {"fp32"}


def test_an_operator_takes_the_longer_of_arithmetic_and_traffic_and_a_launch():
    calls = [["aten.mm", "fp16", 10**12, 1, 2], ["aten.add", "fp32", 0, 10**9, 1], ["c10d.allreduce_", "fp32", 0, 9, 7]]

    seconds, why = estimated_seconds([{"kind": "work", "why": None, "calls": calls}], RATES)

    by_hand = 2 * (10**12 / (0.8 * RATES.flops.fp16) + 3e-6) + 10**9 / (0.8 * RATES.bandwidth) + 3e-6
    assert seconds == pytest.approx(by_hand)
    assert why is None
    assert estimated_seconds([], RATES) == (None, "no second step was made")
