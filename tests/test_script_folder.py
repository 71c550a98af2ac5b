"""The run folder of a script: what is stored, what each verb makes of it, and limits on it."""

import csv
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from matplotlib.figure import Figure

from profiler.cli import answer, script
from profiler.core import gpu_specs
from profiler.core.errors import UserError
from profiler.core.record import AppliedToModel, Gradients, Growth, Holder, Phase
from profiler.core.units import GIB, MIB
from profiler.runs import store
from profiler.scripts import records
from profiler.scripts.report import Ended, Process, Variant, why_skipped
from profiler.views.plots import frontier
from profiler.views.tables.plans import script_table
from profiler.workflows.largest_number import largest
from tests.scripts.runs import ROOT, gcprof

WORDS = ("python", "train.py", "--batch-size", "32")


def phase(name="forward", peak=10 * MIB, reserved=20 * MIB, *, line="train.py:7", **more):
    of = {"name": name, "is_first_step": True, "first_step": 0, "num": 1, "live_bytes": peak // 2, "line": line}
    return Phase(**of, peak_bytes=peak, reserved_bytes=reserved, **more)


def process(*phases, **more):
    phases = phases or (phase(), phase("backward", 30 * MIB, 40 * MIB, line="train.py:9"))
    of = {"rank": None, "number": 77, "outcome": "ok", "num_steps": 3, "module": "Net", "torch": "2.9.0"}
    of |= {f"{name}_bytes": max(getattr(one, f"{name}_bytes") or 0 for one in phases) for name in ("peak", "reserved")}
    return Process(**of | more, reads=("train.py:11",), phases=phases)


def variant(*processes, device="t4", words=WORDS, outcome="ok", exit_code=0, **values):
    of = {"gpu_bytes": 15 * GIB, "context_bytes": 600 * MIB, "device": str(gpu_specs.rehearsed(device))}
    of |= {"command": words, "outcome": outcome, "exit_code": exit_code, "processes": processes}
    return Variant(words={"device": device, **values}, **of)


HELD = (Holder(category="saved", line="train.py:7", module="Net.layers", num=3, nbytes=8 * MIB),)
SHORT = {"outcome": "out_of_memory", "detail": "in the backward of step 1, train.py:9"}
OK = [variant(process())]
OUT_OF_MEMORY = [variant(process(**SHORT), outcome="out_of_memory", exit_code=1)]
HELD_AND_GROWN = process(
    phase(holders=HELD), **SHORT, shortage_holders=HELD, notes=("a note",), died=1.5,
    growth=(Growth(line="train.py:12", num_steps=2, nbytes=MIB),),
    applied=(AppliedToModel(strategy="all", module="Net", num_blocks=3),),
)  # fmt: skip
MEASURED = {
    "gpu_bytes": None, "context_bytes": 0, "outcome": "ok", "device": "cpu", "command": WORDS,
    "seconds": ((0.1, 0.2), (0.1, 0.3)), "equality": Gradients(verdict="equal", num_gradients=4),
    "processes": (process(phase(reserved=None), reserved_bytes=None),),
}  # fmt: skip
ENDINGS = {
    "ranks, values, and one without a GPU": [
        variant(process(rank=0), process(rank=1), device="t4:2", batch="16"),
        variant(process(phase(peak=50 * MIB, reserved=60 * MIB)), batch="32"),
        variant(device="h100", outcome="failed", exit_code=1),
    ],
    "held, skipped, crashed": [
        variant(HELD_AND_GROWN, outcome="out_of_memory", exit_code=1, strategy="none"),
        variant(process(outcome="skipped", detail="Net: it has no blocks"), outcome="skipped", strategy="all"),
        variant(process(outcome="crashed", detail="it ended"), outcome="timed_out", exit_code=137, strategy="sqrt"),
    ],
    "measured": [Variant(words={"strategy": name, "device": "cpu"}, **MEASURED) for name in ("none", "all")],
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that makes the folder of variants below the working folder, and returns its name."""
    monkeypatch.chdir(tmp_path)

    def make(variants, name="one"):
        return str(script.keep(variants, output=tmp_path / name, started=datetime.now(UTC)).name)

    return make


READERS = {  # and a word of what each prints or writes
    "show RUN": "forward, first step",
    "show RUN --json": '"phases":[{"name":"forward"',
    "explain RUN": "the peak, ",
    "timeline RUN -o drawn.png": "drawn.png",
    "plot RUN -o drawn.svg": "drawn.svg",
    "report RUN": "report.html",
    "report RUN --redact all": "report.html",
    "export RUN --to csv": "train.py:7",
    "export RUN --to md": "| forward, first step |",
    "export RUN --to parquet -o table.parquet": "table.parquet",
    "compare RUN RUN": "same",
    "compare RUN RUN --format csv": "peak_bytes_before",
    "list --folder .": "Net",
    "tag RUN mine": "mine",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_reader_takes_the_run_of_a_script(ending, run, capfd):
    name = run(ENDINGS[ending])

    for line, word in READERS.items():
        for path in [path for path in Path().iterdir() if path.is_file()]:
            path.unlink()
        code = answer([name if one == "RUN" else one for one in line.split()])
        said = capfd.readouterr()

        assert code == 0, (line, said.err)
        assert "internal error" not in said.err, line
        assert word in said.out + said.err, line
        text = Path("report.html").read_text() if "report" in line else ""
        assert ("train.py" in text) == (line == "report RUN")
        assert ("fits?" in text or "gradients</th>" in text) == line.startswith("report")  # the table of all variants
        assert ("Net.layers" in text) == (line == "report RUN" and "held" in ending)


def test_a_scripts_frontier_has_extra_time_against_peak_and_a_line_through_what_is_told_apart(run, capfd):
    peaks = {"none": 40, "all": 10, "sqrt": 20, "slow": 30}
    seconds = {"none": 2.0, "all": 3.0, "sqrt": 2.5, "slow": 2.8}
    made = [
        variant(process(phase(peak=peak * MIB), estimated_seconds=seconds[name]), strategy=name)
        for name, peak in peaks.items()
    ]
    noisy = {"none": (1.0, 1.0, 1.0), "all": (3.0, 3.0, 3.0), "sqrt": (0.5, 1.0, 4.0)}
    measured = [
        Variant(words={"strategy": name, "device": "cpu"}, **MEASURED | {
            "seconds": [[one] * 20 for one in rounds], "processes": (process(phase(peak=peaks[name] * MIB)),)
        })
        for name, rounds in noisy.items()
    ]  # fmt: skip

    for ways, expected in (
        (made, [(10, 50), (20, 50), (20, 25), (40, 25), (40, 0)]), (measured, [(10, 200), (40, 200), (40, 0)]),
    ):  # fmt: skip
        axes = Figure().subplots()
        frontier._ways(axes, rest="t4", variants=ways)
        line, points = (artist.get_xydata() for artist in axes.lines)
        assert line == pytest.approx(np.array(expected))
        assert len(points) == len(ways)
    assert answer(["plot", run(measured), "--kind", "frontier", "-o", "drawn.svg"]) == 0
    assert answer(["plot", run(made[1:], "two"), "--kind", "frontier"]) == 2
    assert "beside that of none" in capfd.readouterr().err


def test_a_page_hides_the_folders_of_plans_and_with_all_their_names_and_the_gpu(run):
    plan = "plan:file=/home/alice/mine.json"
    ways = [
        variant(process(estimated_seconds=seconds), strategy=name) for name, seconds in (("none", 1.0), (plan, 2.0))
    ]
    name = run(ways)
    for level, seen in (("default", {"mine.json", "Tesla T4"}), ("all", set())):
        assert answer(["report", name, "--redact", level, "-o", f"{level}.html"]) == 0
        text = Path(f"{level}.html").read_text()
        assert {word for word in ("alice", "mine.json", "Tesla T4") if word in text} == seen
        assert "+100 %" in text


REFUSED = {  # what would be wrong of a script, with the exit code
    "show RUN --over batch_size": 2,
    "export RUN --to mlflow": 2,
    "compare RUN RUN --fail-on time:>2%": 2,
    "compare RUN ref:cpu/mnist-cnn": 4,
    "rehearse mlp --calibrate RUN": 2,
    "merge RUN REFERENCE -o both": 4,
}


def test_what_a_script_does_not_have_is_refused_in_one_line(run, capfd):
    words = {"RUN": run(OK), "REFERENCE": str(ROOT / "results/reference/cpu/mnist-cnn")}
    for line, expected in REFUSED.items():
        code = answer([words.get(one, one) for one in line.split()])

        said = capfd.readouterr()
        assert (code, said.out) == (expected, ""), said.err
        assert [one.partition(":")[0] for one in said.err.splitlines()] == ["gcprof", "hint"]


def test_explain_says_what_held_the_peak_and_what_grows(run, capfd):
    assert answer(["explain", run([variant(HELD_AND_GROWN)])]) == 0

    said = " ".join(capfd.readouterr().out.split())
    assert "saved train.py:7 Net.layers 3 8,192.0" in said
    assert "grows: train.py:12 (1.00 MiB in 2 steps)" in said


def test_a_command_that_failed_before_it_used_a_gpu_is_said_to_have(run, capfd):
    assert answer(["show", run([variant(outcome="failed", exit_code=7)])]) == 0

    assert "no process of the command used a GPU: it ended with exit code 7" in capfd.readouterr().out


def test_models_that_are_left_as_they_are_share_their_reason():
    left = [AppliedToModel(strategy="none+fused", module=name, why="fused: no kernels") for name in ("Net", "Other")]
    ended = SimpleNamespace(processes=[SimpleNamespace(outcome="ok", applied=left)])

    assert why_skipped(ended, "ok") == "Net, Other: fused: no kernels"


def test_a_way_without_a_time_says_why():
    ways = [("none", variant(process(estimated_seconds=1.0)), 1), ("plan", variant(process(estimate_why="a copy")), 1)]

    assert "note: no time of plan: a copy" in script_table(ways, chosen=None, limit_bytes=1, below=()).below


def test_explain_groups_ranks_that_agree(run, capfd):
    saving = process(phase(), phase("backward", 30 * MIB, 40 * MIB), phase("saving"), rank=0)
    other = process(phase(), phase("backward", 35 * MIB, 40 * MIB), rank=2)

    assert answer(["explain", run([variant(saving, process(rank=1), other)])]) == 0

    said = capfd.readouterr().out
    assert [line.partition(", Net: the peak")[0] for line in said.splitlines() if ", Net: the peak" in line] == [
        "rank 0, rank 1",
        "rank 2",
    ]


def test_merged_runs_are_one_with_all_variants_and_csv_has_a_row_for_each_phase_with_its_bytes(run, capfd):
    names = [run([variant(process(), device=gpu, batch="16")], gpu) for gpu in ("t4", "h100")]

    assert answer(["merge", *names, "-o", "both"]) == answer(["export", "both", "--to", "csv"]) == 0

    rows = list(csv.DictReader(io.StringIO(capfd.readouterr().out)))
    assert [(row["values"], row["phase"], int(row["peak_bytes"])) for row in rows] == [
        ("batch=16", "forward", 10 * MIB),
        ("batch=16", "backward", 30 * MIB),
    ] * 2
    assert {row["evidence"] for row in rows} == {"rehearsed"}
    assert {one.words["device"] for one in records.variants(store.load(Path("both")).records)} == {"t4", "h100"}


def test_phases_are_paired_by_strategy_value_rank_and_name(run, capfd):
    before = [variant(process(phase(peak=10 * MIB), rank=0), batch=size) for size in "ab"]
    after = [variant(process(phase(peak=15 * MIB), rank=0), batch="b"), before[0]]

    answer(["compare", run(before, "x"), run(after, "y"), "--format", "json"])

    (compared,) = json.loads(capfd.readouterr().out)["comparisons"]
    pairs = {(pair["values"], pair["process"], pair["phase"]): pair for pair in compared["pairs"]}
    assert len(pairs) == 2 * 2
    peaks = [pairs["batch b", "rank 0", "forward, first step"][side]["peak_bytes"] for side in ("before", "after")]
    assert peaks == [10 * MIB, 15 * MIB]
    assert pairs["batch a", "rank 0", "whole"]["after"]["peak_bytes"] == 10 * MIB


def test_a_change_over_its_limit_is_five_and_so_is_what_ran_out_of_memory_or_is_missing(run, capfd):
    before, short = run([variant(process(phase(peak=100 * MIB)))], "before"), run(OUT_OF_MEMORY, "short")
    same, more = (run([variant(process(phase(peak=peak * MIB)))], str(peak)) for peak in (110, 111))
    other = run([variant(process(phase("backward"), torch="2.15.0"), device="h100")], "other")
    capfd.readouterr()

    codes = [answer(["compare", before, after, "--fail-on", "peak:>10%"]) for after in (same, more, short, other)]

    assert codes == [0, 5, 5, 5]
    assert answer(["compare", before, short, "--fail-on", "out-of-memory"]) == 5
    said = capfd.readouterr()
    assert all(remark in said.out + said.err for remark in ("device: t4 -> h100", "torch: 2.9.0 -> 2.15.0"))


def test_limits_are_bytes_or_shares_of_the_gpu():
    whether = {"peak:>30MiB": False, "peak:>29MiB": True, "reserved:>0.25%": True, "out-of-memory": False}  # of 15 GiB
    for text, is_over in whether.items():
        assert bool(records.exceeded(OK, records.parse_limits(text))) == is_over
        assert records.exceeded(OUT_OF_MEMORY, records.parse_limits(text))
    for text in ("peak", "peak:<1GiB", "time:>2%", "peak:>1GiB,peak:>2GiB"):
        with pytest.raises(UserError):
            records.parse_limits(text)


def test_secrets_of_the_command_are_not_stored(run):
    secret = "hf_abcdefghijklmnopqrstuvwx"
    name = run([variant(process(), words=("python", "train.py", f"--token={secret}"))])

    assert all(secret not in path.read_text() for path in Path(name).glob("*.json*"))


@pytest.mark.slow
def test_a_rehearsal_writes_a_run_below_the_results_that_says_what_the_script_said(folder, monkeypatch, capfd):
    words = ("--", "python", "vae.py", "--name={name}")
    done = gcprof("rehearse", "--device", "t4", "--json", "--quiet", "-L", "name a,b", *words, cwd=folder)
    document = json.loads(done.stdout)
    monkeypatch.chdir(folder)
    printed = [int(line.split()[-1]) for line in done.stderr.splitlines() if "max memory allocated" in line]

    assert answer(["show", document["run"], "--json"]) == done.returncode == 0
    stored = json.loads(capfd.readouterr().out)

    assert document["status"] == stored["status"] == "complete"
    rows = [(one["readings"]["peak_bytes"], one["case"]["command"][-1], one["evidence"]) for one in stored["records"]]
    assert rows == list(zip(printed, ("--name=a", "--name=b"), ["rehearsed"] * 2, strict=True))
    phases = [one["phases"] for one in stored["records"]]
    assert phases == [one["processes"][0]["phases"] for one in document["variants"]]
    assert str(folder) not in json.dumps(stored)


STEP = """import sys, torch
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))).cuda()
model(torch.randn(min(int(sys.argv[1]), int(sys.argv[2])), 256, device="cuda")).sum().backward()"""


@pytest.mark.slow
def test_the_largest_batch_of_a_script_fits_and_the_next_does_not(tmp_path):
    (tmp_path / "train.py").write_text(STEP)
    asked, script = ("rehearse", "--device", "t4", "--memory", "800MiB", "--quiet"), ("--", "python", "train.py")

    found = gcprof(*asked, "--json", "-L", "batch max:4096", *script, "{batch}", "1000000000", cwd=tmp_path)
    (variant,) = json.loads(found.stdout)["variants"]
    most = int(variant["words"]["batch"])

    assert (found.returncode, variant["outcome"], most % 4096) == (0, "ok", 0)
    for batch, code in ((most, 0), (most + 4096 + most // 100, 1)):
        assert gcprof(*asked, *script, str(batch), "1000000000", cwd=tmp_path).returncode == code
    short = gcprof(*asked, "-L", "batch max:4096", *script, "{batch}", "5000", cwd=tmp_path)
    assert (short.returncode, "no more" in short.stdout) == (1, True)


@pytest.mark.parametrize(
    ("beyond", "ended", "outcome", "word"),
    [
        ({"outcome": "out_of_memory", "needed_bytes": GIB}, {}, "ok", "fits is"),  # torn: one process takes less
        ({"outcome": "failed", "detail": "ValueError"}, {}, "failed", "ValueError"),
        ({"outcome": "skipped", "detail": "no blocks"}, {}, "skipped", "no blocks"),
        ({"outcome": "timed_out"}, {"interrupted": 2}, "ok", "interrupted"),
        ({"processes": ()}, {}, "failed", "no step"),
    ],
)
def test_what_a_search_for_the_largest_found_is_kept_however_it_ends(beyond, ended, outcome, word):
    def run(number):
        found = variant(process(phase("backward", number * MIB, number * MIB)), batch=str(number))
        if number <= 100:
            return Ended(exit_code=0), found
        return Ended(exit_code=1, **ended), msgspec.structs.replace(found, **beyond)

    _, found, said = largest(run, "batch", gpu_specs.rehearsed("t4"), unit=1, say=lambda text: None)

    assert (found.outcome, word in said) == (outcome, True)
    assert (64 <= int(found.words["batch"]) <= 100) == (outcome == "ok")


def test_max_alone_is_looked_for_and_what_cannot_be_is_refused():
    words = ("train.py", "{batch}", "{rate}")

    assert script.filled(["batch max:8", "rate max,1"], words) == [
        ({"batch": "max:8", "rate": rate}, ("train.py", "{batch}", rate)) for rate in ("max", "1")
    ]
    for axes in (["batch max:0"], ["batch max:-3"], ["batch max:abc"], ["batch 8", "batch 16"]):
        with pytest.raises(UserError):
            script.filled([*axes, "rate 1"], words)
    with pytest.raises(UserError):
        script.filled(["batch max", "rate max"], words)
