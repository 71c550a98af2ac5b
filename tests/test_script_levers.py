"""Strategies, levers and plans on scripts: `gcprof fit`, `plan` and `rehearse --strategies ... -- COMMAND`."""

import copy
import json
import random
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import pytest
import torch
from msgspec import to_builtins
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from profiler.cli import answer
from profiler.core.errors import Unsupported
from profiler.core.gpu_specs import parse
from profiler.core.units import MIB
from profiler.planning.solver import best, frontier
from profiler.scripts import applying, launch
from profiler.scripts.report import Asked, Variant
from profiler.training.chunked_loss import FoundHeads
from profiler.workflows import fit_command, fit_search
from tests.planning_chains import equal_stages, with_modules
from tests.plans import plan_of
from tests.program import next_words
from tests.scripts import checkpointed
from tests.scripts.runs import ROOT, TABLE, answered, control, environment, gcprof, rehearsed

LARGE = (("= 256, 2, 4, 128", "= 16384, 2, 4, 128"), ("int, default=8)", "int, default=32)"))  # logits, and a batch
IN_FP32 = (  # a sum in another order may flip a weight's rounding to bf16
    (":.4f}", ":.9f}"),
    ("dtype=torch.bfloat16)", "dtype=torch.bfloat16, enabled=False)"),
)
PEAKS = {"none": 20, "plan": 11, "all": 9, "none+chunk-loss": 15}
LOSS = re.compile(r"[Ll]oss:? ([\d.]+)")


def edited(path, *edits):
    text = path.read_text()
    for before, after in edits:
        assert before in text
        text = text.replace(before, after)
    path.write_text(text)


@pytest.mark.slow
def test_a_script_that_was_fitted_reserves_no_more_than_the_memory_evaluation_included(folder, kept):
    words = TABLE["nanogpt_like"].words
    edited(folder / "nanogpt_like.py", *LARGE)
    (plain,) = control(words, cwd=folder, kept=kept).figures
    limit = plain.reserved_bytes - 278 * MIB

    asked = ("--memory", f"{limit}B", "--context", "0", "--device", "t4", "-o", "plan.json", "--json", "--quiet")
    fitted = answered("fit", *asked, command=words, cwd=folder)
    chosen, *others = sorted(fitted.document["ways"], key=lambda way: not way["is_chosen"])
    label = chosen["way"].replace("plan", "plan:file=plan.json")
    done = rehearsed(words, "--strategies", label, "--memory", f"{limit}B", cwd=folder)

    assert fitted.exit_code == done.exit_code == 0, fitted.said + done.said
    assert not any(way["fits"] for way in others)
    (variant,) = done.document["variants"]
    (figures,) = done.figures
    assert variant["outcome"] == "ok"
    assert figures.reserved_bytes == chosen["needed_bytes"] <= limit < plain.reserved_bytes
    assert figures.peak_bytes < plain.peak_bytes
    assert done.printed == [figures.peak_bytes]
    assert "evaluation" in {phase["name"] for process in variant["processes"] for phase in process["phases"]}


def losses(words, label, cwd):
    """The losses that a script prints on the CPU: under a label, or without gcprof; and what became of its model."""
    with tempfile.TemporaryFile() as file:
        rows = []
        if label is None:
            given = environment(CUDA_VISIBLE_DEVICES="")
            subprocess.run(words, cwd=cwd, env=given, stdout=file, timeout=300, check=True)
        else:
            hidden = {"CUDA_VISIBLE_DEVICES": "", "GCPROF_MEASURE": "gradients", "GCPROF_SEED": "0"}
            rows = launch.run(Asked(words=words, strategy=label, variables=hidden), stdout=file.fileno()).rows
        file.seek(0)
        printed = [float(loss) for loss in LOSS.findall(file.read().decode())]
    return printed, [row.get("why") or row.get("text", "") for row in rows if row["kind"] in ("applied", "raised")]


CLIP = "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
PASTED = {  # by label: edits of the script that it can be applied to
    "all+chunk-loss:rows=128+offload-inputs:least=1": (),
    "selective:save=matmul+chunk-loss:by=parts+in-backward": ((CLIP, ""), ("int, default=3)", "int, default=1)")),
}
WEIGHTS = """
for weight in raw_model.parameters():
    print(f"loss {weight.double().norm():.9f}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("label", PASTED)
def test_a_script_with_its_code_or_its_label_takes_the_bytes_of_the_row_and_trains_as_without(
    label, folder, kept, monkeypatch
):
    monkeypatch.chdir(folder)
    edited(folder / "nanogpt_like.py", ("= 256, 2, 4, 128", "= 2048, 2, 4, 128"), *PASTED[label])
    text = (folder / "nanogpt_like.py").read_text()

    asked = Asked(words=(sys.executable, "nanogpt_like.py"), gpus=parse("rehearse:t4"), strategy=label)
    end = launch.run(asked, stdout=2)
    code = fit_command.code(fit_command.Way(variant=Variant.of(end, asked, {}), end=end), "python")
    (row,) = end.processes
    assert "profiler" not in code
    before, after = text.split("raw_model = model\n")
    pasted = f"{before}{code}\noptimizer = apply_levers(model, optimizer)\nraw_model = model\n{after}"
    (folder / "pasted.py").write_text(pasted)

    (alone,) = control((sys.executable, "pasted.py"), cwd=folder, kept=kept).figures
    assert (alone.peak_bytes, alone.reserved_bytes) == (row.peak_bytes, row.reserved_bytes)
    for name, script in (("nanogpt_like", text), ("pasted", pasted)):
        (folder / f"{name}.py").write_text(script + WEIGHTS)
        edited(folder / f"{name}.py", *IN_FP32)
    printed, own = (losses((sys.executable, f"{name}.py"), None, folder)[0] for name in ("nanogpt_like", "pasted"))
    under, fates = losses((sys.executable, "nanogpt_like.py"), label, folder)
    assert len(printed) > 20
    assert own == pytest.approx(printed, rel=1e-5)
    assert under == pytest.approx(printed, rel=1e-5)
    assert fates == [""]


TRAINS = """
import torch
from torch import nn

model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    for _ in range({backwards}):
        model(torch.ones(2, 8)).square().mean().backward()
    if {clips}:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print("loss", float(model(torch.ones(2, 8)).square().mean()))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "changes", "reason"),
    [
        ("none+in-backward", {"backwards": 2}, "accumulates"),
        ("none+in-backward", {"clips": True}, "clips gradients, at mine.py:11"),
        ("none+chunk-loss", {}, "only meets cross entropy within the model's own forward"),
    ],
)
def test_a_lever_that_a_script_does_not_allow_says_why(label, changes, reason, here):
    (here / "mine.py").write_text(TRAINS.format(**{"backwards": 1, "clips": False} | changes))

    _, said = losses((sys.executable, "mine.py"), label, here)

    assert any(reason in text for text in said), said


@pytest.mark.slow
def test_in_backward_steps_with_gradients_that_a_script_keeps_as_zeros(here):
    text = TRAINS.format(backwards=1, clips=False).replace("zero_grad()", "zero_grad(set_to_none=False)")
    text = text.replace("model = ", "torch.manual_seed(0)\nmodel = ").replace("0.1)", "0.1, weight_decay=0.5)")
    alternating = "model.forward = lambda x: nn.Sequential.forward(model[: 4 - step % 2], x)\n"
    (here / "mine.py").write_text(text.replace("optimizer = ", f"{alternating}optimizer = "))

    plain, _ = losses((sys.executable, "mine.py"), None, here)

    assert losses((sys.executable, "mine.py"), "none+in-backward", here) == (plain, [""])


@pytest.mark.slow
def test_the_example_of_the_page_is_what_is_printed(folder):
    page = (ROOT / "docs" / "planning.md").read_text()
    (command,) = re.findall(r"^gcprof fit .*-o plan.json.*$", page, re.MULTILINE)
    (shown,) = re.findall(r"<!-- fit -->\n```text\n(.*?)```", page, re.DOTALL)

    done = gcprof(*shlex.split(command)[1:], cwd=folder, COLUMNS="120")

    assert done.returncode == 0, done.stderr
    assert done.stdout == shown
    assert "next: gcprof rehearse --device t4 --context 0 --strategies none,plan:file=plan.json -- " in done.stderr


# ---- a plan of a script


def planned(words, *options, cwd):
    return answered("plan", "--device", "t4", *options, command=words, cwd=cwd)


def test_segments_that_grow_are_tried_where_only_what_all_reserves_is_too_large():
    search = object.__new__(fit_command.Search)
    search.limit_bytes, search._context = 10, 0
    variants = {label: SimpleNamespace(largest=SimpleNamespace(peak_bytes=peak)) for label, peak in PEAKS.items()}
    search._ways = {label: SimpleNamespace(label=label, variant=variant) for label, variant in variants.items()}

    assert search._torn([(), (fit_search.LOSS,)]) == [(fit_search.EXPANDABLE,)]


@pytest.mark.parametrize(
    ("needed", "chosen"),
    [({"all": 9, "none": 8}, "none"), ({"all": 9, "none": None, "none+fused": 9}, "none+fused"), ({"all": None}, None)],
)
def test_where_nothing_fits_the_fastest_that_runs_on_a_gpu_of_no_more_memory_is_taken(needed, chosen):
    """PyTorch frees what it has cached there; if what needs least does not run, nothing else is tried."""

    def way(label, nbytes):
        def fits(limit):
            return nbytes is not None and nbytes <= limit

        seconds = 2.0 if label == "all" else 1.0
        return SimpleNamespace(label=label, needed_bytes=nbytes, step_seconds=seconds, fits=fits, plan=None, need="")

    search = object.__new__(fit_command.Search)
    search._asked, search._say = Asked(words=(), gpus=parse("rehearse:t4")), lambda text: None
    search.limit_bytes, search.num_rehearsed, search._context, search.left_out = 10, 1, 0, {}
    search._ways = {label: way(label, size) for label, size in (("none", 20), ("none+fused", 19), ("all", 15))}
    search._tiers, search._kernels = lambda kernels: (), lambda: ()
    search._rehearsed = lambda label, plan: way(label, needed[label] if search._asked.gpus.bytes == 10 else 20)

    found = search.with_levers()

    assert (found and found.label) == chosen
    assert search.num_rehearsed == 1 + len(needed)


def test_a_plan_that_recomputes_nothing_is_the_command_as_it_is():
    search, chain = object.__new__(fit_command.Search), with_modules(equal_stages(2), "a", "b")
    search._has_levers, search.has_room, search._ways = False, True, {"none": SimpleNamespace(needed_bytes=9)}

    tried = search._try((), chain, best(frontier(chain), 100))

    assert (tried.needed_bytes, tried.has_room) == (9, True)


def test_of_several_models_those_that_a_plan_leaves_are_named(monkeypatch):
    search, plain = object.__new__(fit_command.Search), SimpleNamespace(label="none")
    search._roomy = Asked(words=(), gpus=parse("t4"))
    plain.end = SimpleNamespace(rows=[{"kind": "phase", "phase": "forward", "step": 0, "devices": {}}])
    rows = [{"kind": "applied", "module": name, "num_blocks": 4, "why": None} for name in ("Net", "Other")]
    rows.append({"kind": "chain", "module": "Net", "chain": to_builtins(equal_stages(2)), "floor_bytes": 1, "why": ""})
    monkeypatch.setattr(fit_command, "_ended", lambda asked: SimpleNamespace(rows=rows, processes=()))

    assert search._traced_chain(plain)[0] == "Net"
    assert search.others == ("Other",)


ACTS = """
import torch
from torch import nn

def net():
    blocks = (nn.Sequential(nn.Linear(2048, 2048), nn.ReLU()) for _ in range(4))
    return nn.Sequential(*blocks, nn.Linear(2048, 4)).cuda()

policy, target = net(), net()
optimizer = torch.optim.Adam(policy.parameters())
for step in range(3):
    actions = [policy(torch.randn(1, 2048, device="cuda")).argmax() for _ in range(2)]
    values = policy(torch.randn(4096, 2048, device="cuda"))
    with torch.no_grad():
        wanted = target(torch.randn(4096, 2048, device="cuda"))
    loss = nn.functional.mse_loss(values, wanted)
    optimizer.zero_grad()  # of as many bytes as two activations
    loss.backward()
    optimizer.step()
print("max memory allocated", torch.cuda.max_memory_allocated())
"""


@pytest.mark.slow
def test_a_policy_that_acts_between_its_steps_is_planned_for_beside_its_target(hollow, here, kept):
    words = ("python", "acts.py")
    (here / "acts.py").write_text(ACTS)
    (alone,) = control(words, cwd=here, kept=kept).figures

    plan = planned(words, "--budget", "96%", "-o", "plan.json", "--json", cwd=here)
    done = rehearsed(words, "--strategies", "plan:file=plan.json", cwd=here)

    assert plan.exit_code == done.exit_code == 0, plan.said + done.said
    assert plan.document["budget_bytes"] == pytest.approx(alone.peak_bytes * 0.96, abs=1)
    assert done.printed == [done.figures[0].peak_bytes]
    assert done.figures[0].peak_bytes <= plan.document["budget_bytes"]


@pytest.mark.nightly
def test_a_script_that_runs_out_of_memory_is_planned_onto_its_gpu_unless_no_plan_fits(folder):
    words = (*TABLE["nanogpt_like"].words, "--batch-size", "64")
    edited(folder / "nanogpt_like.py", ("= 256, 2, 4, 128", "= 256, 8, 4, 128"))
    (process,) = rehearsed(words, cwd=folder).document["variants"][0]["processes"]
    room = process["peak_bytes"] * 9 // 10 + 600 * MIB  # and CUDA's context

    plan = planned(words, "--device", f"t4:memory={room}", "--budget", "75%", "--json", cwd=folder)
    evaluation, none = (planned(words, "--budget", size, "--json", cwd=folder) for size in ("16MiB", "62MiB"))

    assert plan.exit_code == 0, plan.said
    assert "out of memory" in plan.said
    assert plan.document["whole"]["outcome"] == plan.document["planned"]["outcome"] == "ok"
    assert evaluation.exit_code == none.exit_code == 5
    assert evaluation.document["plan"] is none.document["plan"] is None
    assert evaluation.document["why"].startswith("the evaluation takes 59.7 MiB (nanogpt_like.py:")
    assert "smallest plan" in none.document["why"]


@pytest.mark.parametrize(
    ("words", "noun"),
    [
        (("fit", "--memory", "lots"), "--memory"),
        (("fit",), "--memory"),
        (("rehearse", "--strategies", "none+8bit"), "its optimizer's state"),
        (("rehearse", "--strategies", "none+fused+no-foreach"), "both choose the optimizer's kernels"),
        (("plan", "--optimizer", "adam"), "--optimizer"),
        (("plan", "--budget", "1GiB", "-o", "frontier.png"), "frontier.png"),
        (("plan", "--budget", "1GiB", "--emit", "python", "--json"), "--json"),
        (("plan", "--emit", "python"), "budget"),  # which begins no command
    ],
)
def test_what_a_script_cannot_be_given_is_refused_before_it_runs(words, noun, tmp_path):
    done = gcprof(*words, "--", "python", "absent.py", cwd=tmp_path)

    assert done.returncode == 2
    assert noun in done.stderr


@pytest.mark.parametrize("nodes", [["--nnodes", "2"], ["--nnodes=2:4"], ["--num_machines", "2"]])
def test_a_command_that_would_wait_for_other_nodes_is_refused(nodes, tmp_path):
    done = gcprof("rehearse", "--", "torchrun", *nodes, "absent.py", "--nnodes", "1", cwd=tmp_path)

    assert done.returncode == 2
    assert "nodes that are not here" in done.stderr


# ---- strategies: held to copies of the scripts with checkpoints written in by hand


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "strategy"),
    [pytest.param(*pair, marks=pytest.mark.nightly) if nth else pair for nth, pair in enumerate(checkpointed.EDITS)],
)
def test_a_strategy_takes_to_the_byte_what_checkpoints_written_by_hand_take(name, strategy, folder, kept):
    script = TABLE[name]
    if script.missing:
        pytest.skip(f"{', '.join(script.missing)}: not installed")
    path = folder / f"{name}.py"
    text = path.read_text()
    if name == "imagenet_like":
        edited(path, ("optimizer = ", "model = nn.DataParallel(model)\noptimizer = "))  # which calls it, on one GPU
    done = rehearsed(script.words, "--strategies", strategy, cwd=folder, num_gpus=script.num_gpus)
    path.write_text(checkpointed.checkpointed(name, strategy, text))

    by_hand = control(script.words, cwd=folder, kept=kept, num_gpus=script.num_gpus, decided=script.decided)

    assert by_hand.exit_code == done.exit_code == 0, by_hand.said + done.said
    assert done.figures == by_hand.figures
    assert len(done.figures) == script.num_gpus
    assert [variant["words"]["strategy"] for variant in done.document["variants"]] == [strategy]


@pytest.mark.nightly
def test_of_two_models_the_one_that_is_chosen_is_changed(folder, kept):
    done = rehearsed(("python", "gan.py"), "--strategies", "sqrt", "--module", "Gener*", cwd=folder)
    plan = planned(("python", "gan.py"), "--budget", "99%", "--module", "Discr*", "--json", cwd=folder)
    assert plan.document["module"] == "Discriminator"
    path = folder / "gan.py"
    generator, discriminator = path.read_text().split("class Discriminator")
    edits = checkpointed.checkpointed("gan", "sqrt", generator)
    path.write_text(f"{edits}class Discriminator{discriminator}")
    by_hand = control(("python", "gan.py"), cwd=folder, kept=kept)

    (process,) = done.document["variants"][0]["processes"]
    chosen = {(made["module"], made["num_blocks"]) for made in process["applied"] if made["why"] is None}
    assert chosen == {("Generator", 6)}
    assert done.figures == by_hand.figures


@pytest.mark.nightly
def test_own_checkpoints_are_named_under_none_and_replaced_by_other_strategies_unless_compiled(folder, kept):
    own = checkpointed.checkpointed("nanogpt_like", "all", (folder / "nanogpt_like.py").read_text())
    (folder / "own.py").write_text(own.replace("torch.compile(model)", "torch.compile(model, backend='eager')"))
    again = "_checkpoint(block, x, use_reentrant=False)"
    (folder / "hand.py").write_text(own.replace(again, f"{again} if block is self.h[1] else block(x)"))

    done = rehearsed(("python", "own.py"), "--strategies", "none,every", cwd=folder)
    by_hand = control(("python", "hand.py"), cwd=folder, kept=kept)
    compiled = rehearsed(("python", "own.py", "--compile"), "--strategies", "all", cwd=folder)

    none, every = done.document["variants"]
    named, changed = (variant["processes"][0]["applied"] for variant in (none, every))
    assert "h.*" in [name for made in named for name in made["own"]]
    assert sum(made["num_blocks"] for made in changed) == 1
    (expected,) = by_hand.figures
    assert every["processes"][0]["peak_bytes"] == expected.peak_bytes
    assert every["processes"][0]["reserved_bytes"] == expected.reserved_bytes
    (skipped,) = compiled.document["variants"]
    assert (compiled.exit_code, skipped["outcome"], skipped["processes"][0]["module"]) == (0, "skipped", "GPT")
    assert "compiled" in skipped["detail"]


# ---- in this process, on the CPU


class Odd(nn.Module):
    """A chain with everything that a forward could leave behind."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)) for _ in range(6)
        )
        self.calls, self.seen = 0, []

    def forward(self, x, *, scale):
        self.calls += 1
        self.seen.append(random.random())
        for layer in self.layers:
            x = layer(x)
        return x * scale


def gradients(model, x):
    torch.manual_seed(1)
    random.seed(1)
    model.zero_grad()
    model(x, scale=2.0).sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_a_wrapper_of_fsdp1_has_its_own_name(monkeypatch):
    monkeypatch.syspath_prepend(launch.INJECT)
    name = runpy.run_path(str(launch.INJECT / "gcprof_strategies.py"))["_name"]

    assert name(FullyShardedDataParallel.__new__(FullyShardedDataParallel)) == "FullyShardedDataParallel"


@pytest.mark.parametrize("strategy", ["sqrt", "segments:k=2,split=balanced"])
def test_applying_leaves_no_trace_and_gradients_as_they_are(strategy):
    torch.manual_seed(0)
    model, x = Odd(), torch.randn(4, 8)
    plain = copy.deepcopy(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    held = {name: id(parameter) for name, parameter in model.named_parameters()}
    states = torch.get_rng_state(), random.getstate()

    made = applying.apply(model, (x,), {"scale": 2.0}, strategy)

    assert made["why"] is None
    assert "BatchNorm updates its statistics again" in made["split"]
    others = {**made["code"], "plan": None}, {**made["code"], "module": "Odd"}  # one that is left as it is
    code = fit_command.code(SimpleNamespace(changed=others, plan=None, label=strategy), "python")
    assert "`model` is the Odd " in code
    assert "_repair_batchnorm(model)" in code  # what this computes: test_emit.py
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (model.calls, model.seen) == (0, [])
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == held
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(map(torch.equal, gradients(model, x), gradients(plain, x)))


def test_the_code_of_a_scripts_plan_holds_the_statistics_of_batchnorm(here, monkeypatch, capsys):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)) for _ in range(4)))
    made = applying.apply(model, (torch.randn(4, 8),), {}, "all")["code"]
    chosen = SimpleNamespace(changed=[made], plan=plan_of(model, "0123", [[0], [1]]))
    monkeypatch.setattr(fit_command, "plan", lambda *_, **__: SimpleNamespace(chosen=chosen, exit_code=0))
    monkeypatch.setattr("profiler.cli.fit._print_script", lambda fitted: None)

    for kind in ("--emit", "python"), ("-o", "plan.json"):
        assert answer(["plan", "--budget", "1GiB", *kind, "--", "python", "mine.py"]) == 0
    said = capsys.readouterr()
    assert answer(next_words(said.err)) == 0
    assert "_repair_batchnorm(model)" in said.out == capsys.readouterr().out  # what this computes: test_emit.py


def test_a_script_is_to_fit_in_all_of_its_gpu_unless_another_memory_is_named(monkeypatch, capsys):
    asked = []
    fitted = SimpleNamespace(chosen=None, ways=[None], exit_code=5)
    monkeypatch.setattr(fit_command, "fit", lambda of, limit, say: asked.append((of.gpus.name, limit)) or fitted)
    monkeypatch.setattr("profiler.cli.fit._print_script", lambda fitted, source: None)

    assert answer(["fit", "--device", "t4", "--", "python", "mine.py"]) == 5
    assert answer(["fit", "--memory", "1GiB", "--", "python", "mine.py"]) == 5
    assert asked == [("t4", 1.0), ("h100", 1 << 30)]
    assert answer(["fit", "mine.py", "--memory", "1GiB"]) == 2
    assert "hint: gcprof fit --memory 1GiB -- python mine.py" in capsys.readouterr().err


def test_a_model_whose_forward_needs_values_is_left_as_it_is_with_the_reason():
    class Reads(nn.Sequential):
        def forward(self, x):
            return super().forward(x) * int(self[0](x).abs().argmax())

    model = Reads(*(nn.Linear(8, 8) for _ in range(6)))

    made = applying.apply(model, (torch.randn(4, 8),), {}, "sqrt")

    assert made["why"].endswith("; `all` does not need that")
    with pytest.raises(Unsupported, match=r"values \(.*\)$"), applying.looking(model, torch.randn(4, 8)) as x:
        model(x)
    with pytest.raises(ZeroDivisionError):
        FoundHeads(128, "parts").found(model, lambda: 1 / 0)
    assert type(model) is Reads
    assert not any("_route" in vars(part) or part._forward_pre_hooks for part in model.modules())


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("strategy", ["all", "sqrt"])
def test_blocks_of_torch_jit_script_are_left_as_they_are_with_the_reason(strategy):
    blocks = nn.ModuleList(torch.jit.script(nn.Linear(8, 8)) for _ in range(4))

    made = applying.apply(nn.Sequential(blocks), (torch.randn(4, 8),), {}, strategy)

    assert "torch.jit.script" in made["why"]


def test_a_plan_of_another_model_of_the_script_is_not_applied_with_the_reason(tmp_path):
    x = torch.randn(4, 8)
    made = applying.apply(nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))), (x,), {}, "all")
    (tmp_path / "plan.json").write_text(json.dumps(made["code"]["plan"]))

    assert "another model" in applying.apply(nn.Linear(8, 8), (x,), {}, f"plan:file={tmp_path}/plan.json")["why"]
