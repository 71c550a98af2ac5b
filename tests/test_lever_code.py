"""Code for levers: a plain loop with it, in a process that has no gcprof, takes the bytes of the row."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from msgspec import UNSET

from profiler.cli import answer
from profiler.core import plan_file
from profiler.core.case import Case, Choice
from profiler.core.errors import UserError
from profiler.core.gpu_specs import parse
from profiler.core.plan_file import OFFLOADING, PlanFile, Segment
from profiler.planning.plan_code import Way, emit_way
from profiler.predicting.traced_case import code_way
from profiler.rehearsal import device, loader
from profiler.rehearsal.smoke import proven_libraries
from profiler.training import chunked_loss, resolved_label
from tests import make
from tests.program import PATIENCE_SECONDS, WITHOUT_GCPROF, gcprof
from tests.small_heads import STEPS
from tests.user_models import small_llm

pytestmark = pytest.mark.usefixtures("shared")

MODEL = f"{small_llm.__file__}:make"
LABELS = [
    "none",
    "none+chunk-loss:rows=64,by=parts",
    "none+chunk-loss:rows=64",
    "none+micro-batches:n=4",
    "recursive+offload-inputs:least=1",
    "all+chunk-loss:rows=64,by=parts+micro-batches:n=2+fused",
    "all+bf16-state+in-backward",
]
PLAN = "plan with offload"  # the inputs of two checkpoints wait in host memory, one of which keeps results
PLAIN = (
    WITHOUT_GCPROF
    + """
import ctypes, importlib.util, json, os

asked = json.loads(sys.stdin.read())
for path in asked["libraries"]:
    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
import torch
import torch._dynamo  # which checkpoints and optimizers import: once here, not in each fork

spec = importlib.util.spec_from_file_location("small_llm", asked["file"])
file = importlib.util.module_from_spec(spec)
spec.loader.exec_module(file)
code = {}


def loss(model, batch):
    return file.loss(model(batch[0]), batch[1])


def steps(look):
    with torch.device("cuda"):
        model, batch, _ = file.make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    optimizer = code["apply_levers"](model, optimizer)
    for number in range(2):
        look(f"step {number}")
        optimizer.zero_grad()
        look("start")
        if "backward" in code:
            value = code["backward"](model, batch, loss)
        else:
            value = loss(model, batch)
            look("forward")
            value.backward()
        optimizer.step()
        del value
    look("end")


def on_cuda():
    seen = {}

    def look(name):
        if name == "step 1":
            torch.cuda.reset_peak_memory_stats()
        seen[name] = torch.cuda.memory_allocated()

    steps(look)
    return {"peak_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved(),
            "saved_bytes": seen.get("forward", 0) - seen["start"]}


for label, text in asked["codes"].items():
    if not os.fork():
        exec(text, code)
        figures = on_cuda()
        assert "profiler" not in sys.modules
        os.write(1, json.dumps({label: figures}).encode() + b"\\n")
        os._exit(0)
    os.wait()
os._exit(0)
"""
)


def case_of(device: str) -> Case:
    return make.case("none", model=Choice(MODEL), optimizer=Choice("adamw"), batch_size=8, device=device)


def written(labels: Sequence[str], folder: Path) -> dict[str, tuple[str, str]]:
    """By label, how gcprof names it, which for the plan is by its file, and the code for it."""
    case = case_of("rehearse:h100").foreseen
    bare = code_way(case).plan
    assert bare is not None
    plan = offloading(bare)
    plan_file.write(plan, folder / "plan.json")
    found = {PLAN: (f"plan:file={folder / 'plan.json'}", emit_way(Way(label="plan", plan=plan), "python"))}
    for label in labels:
        asked = case.under(resolved_label(Choice(label)))
        kept = tuple(lever for lever in asked.levers or () if lever.name == "chunk-loss") or UNSET
        way = code_way(msgspec.structs.replace(asked, levers=kept))
        found[label] = label, emit_way(msgspec.structs.replace(way, label=label, levers=asked.levers or ()), "python")
    return found


def offloading(bare: PlanFile) -> PlanFile:
    blocks = [name for name in bare.fingerprint if name.startswith("blocks.")]
    segments = (
        Segment(blocks=(blocks[1],), fetched_at=blocks[2]),
        Segment(blocks=(blocks[2],), save="matmul", fetched_at=blocks[3]),
    )
    return msgspec.structs.replace(bare, schema=OFFLOADING, segments=segments)


def alike(readings: dict[str, Any], figures: dict[str, int], label: str) -> None:
    """Of micro-batches the forward saves several times, and the loop looks at none of them."""
    fields = [name for name in figures if name != "saved_bytes" or "micro-batches" not in label]
    assert {name: readings[name] for name in fields} == {name: figures[name] for name in fields}


@pytest.mark.slow
def test_a_loop_of_plain_pytorch_with_the_code_takes_the_bytes_of_the_row(hollow, tmp_path, subtests):
    codes = written(LABELS, tmp_path)
    bare = on_hollow_gpu(codes)

    readings = rehearsed(codes, tmp_path)

    for label, (_, code) in codes.items():
        with subtests.test(label):
            assert "profiler" not in code
            alike(readings[label], bare[label], label)


@pytest.mark.slow
def test_segments_grow_as_in_a_process_that_is_started_with_them(hollow, tmp_path, subtests):
    """Also where rows without them are rehearsed of the same model."""
    labels = ["none+expandable-segments", "all+chunk-loss:rows=64,by=parts+fused+expandable-segments"]
    codes = written(labels, tmp_path)
    bare, others = on_hollow_gpu(codes, PYTORCH_ALLOC_CONF="expandable_segments:True"), on_hollow_gpu(codes)

    readings = rehearsed({"all": ("all", ""), **codes, "all+fused": ("all+fused", "")}, tmp_path)

    assert all("PYTORCH_ALLOC_CONF=expandable_segments:True" in codes[label][1] for label in labels)
    for label in labels:
        with subtests.test(label):
            alike(readings[label], bare[label], label)
            assert bare[label]["reserved_bytes"] != others[label]["reserved_bytes"]


def on_hollow_gpu(codes: dict[str, tuple[str, str]], **more: str) -> dict[str, Any]:
    """The bytes of a plain loop with each code, in processes without gcprof on a device of this process's libraries."""
    folder, verdict = proven_libraries()
    libraries = [str(path) for name in loader.ORDER for path in sorted(folder.glob(f"{name}.so.*"))]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= {"HOLLOW_ARCHS": verdict.archs, **loader.variables(torch.__file__)}
    variables |= device.variables(parse("rehearse:h100")) | more
    texts = {label: code for label, (_, code) in codes.items()}
    asked = json.dumps({"file": small_llm.__file__, "codes": texts, "libraries": libraries})
    done = subprocess.run(
        [sys.executable, "-P", "-c", PLAIN], env=variables, input=asked, capture_output=True, text=True,
        timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) == len(codes), done.stderr
    return {label: figures for one in found for label, figures in one.items()}


def rehearsed(codes: dict[str, tuple[str, str]], folder: Path) -> dict[str, Any]:
    """By label, the readings of rows that gcprof rehearses."""
    names = {name: label for label, (name, _) in codes.items()}
    words = ("--batch-size", "8", "--optimizer", "adamw", "--device", "h100", "--json")
    done = gcprof("rehearse", MODEL, "--strategies", ",".join(names), *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    labelled = {
        "+".join([one["case"]["strategy"], *one["case"].get("levers", ())]): one["readings"]
        for one in json.loads(done.stdout)["records"]
    }
    return {label: labelled[name] for name, label in names.items()}


NOT_IN_TORCH = ("softcap", "smoothed", "a bias that is a buffer, as BART's")  # nothing of F.linear_cross_entropy


@pytest.mark.parametrize(
    ("name", "by"),
    [(name, by) for by in ("parts", "torch") for name in STEPS if by == "parts" or name not in NOT_IN_TORCH],
)
def test_gradients_of_the_code_are_those_of_the_lever_to_the_bit(name, by):
    """Whatever way the logits go to cross entropy."""
    rows = 0 if name == "tied" else 16  # 0 are as many as are chosen
    label = f"none+chunk-loss:rows={rows},by={by}"
    torch.manual_seed(0)
    pasted, code = STEPS[name](), {}
    torch.manual_seed(0)
    lever = STEPS[name]()
    changed, applied = chunked_loss.apply(lever, case_of("cpu"), rows=rows, by=by)

    exec(emit_way(Way(label=label, levers=Choice(label).parts[1:], heads=applied.heads), "python"), code)
    code["apply_levers"](pasted.module, None)
    whole = code["Logits"].whole
    read: list[Any] = []
    code["Logits"].whole = lambda self: read.append(self) or whole(self)
    losses = [pasted.loss(pasted.module, pasted.batch), changed.loss(changed.module, changed.batch)]
    for loss in losses:
        loss.backward()

    assert not read
    assert torch.equal(*losses)
    for one, other in zip(pasted.module.parameters(), lever.module.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("label", ["none+fused", "none+no-foreach+in-backward"])
def test_code_leaves_each_group_its_own_options(label):
    code: dict[str, Any] = {}
    exec(emit_way(Way(label=label, levers=Choice(label).parts[1:]), "python"), code)
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    groups = [{"params": first.parameters(), "lr": 0.1}, {"params": second.parameters(), "weight_decay": 0.2}]

    made = code["apply_levers"](None, torch.optim.AdamW(groups, lr=0.3, weight_decay=0.4))

    assert [(group["lr"], group["weight_decay"]) for group in made.param_groups] == [(0.1, 0.4), (0.3, 0.2)]


def test_code_has_the_defaults_of_levers_and_a_library_that_need_not_be_here():
    levers = Choice("none+chunk-loss+8bit").parts[1:]

    text = emit_way(Way(label="none+chunk-loss+8bit", levers=levers, heads={"head.weight": "head"}), "python")

    assert "Heads(by_parts)" in text
    assert "def in_8_bits(" in text
    assert any(f"import {library}.optim\n" in text for library in ("torchao", "bitsandbytes"))


# what is said where others have words of their own


def way(label: str, plan: tuple[Segment, ...] = (), **more: Any) -> Way:
    """A way of a model with four blocks."""
    _, *chosen = Choice(label).parts
    file = PlanFile(plan="by hand", segments=plan, fingerprint={f"h.{index}": () for index in range(4)})
    return Way(label=label, levers=tuple(chosen), plan=file, optimizer="AdamW", **more)


EACH = tuple(Segment(blocks=(f"h.{index}",)) for index in range(4))
LAYERS = ("transformer.h.0", "transformer.h.1")


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 96, "n_positions": 32}
    return GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))


def of_gpt2(label: str, layers: Sequence[str], kind: str) -> dict[str, Any]:
    segments = tuple(Segment(blocks=(name,)) for name in layers)
    plan = PlanFile(plan="by hand", segments=segments, fingerprint=dict.fromkeys(LAYERS, ()))
    made = way(label, batch_size=8, heads={"lm_head.weight": "lm_head"})
    code: dict[str, Any] = {}
    exec(emit_way(msgspec.structs.replace(made, plan=plan), kind), code)
    return code


def batches() -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    return [{"input_ids": tokens, "labels": tokens} for tokens in torch.randint(96, (16, 32))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "layers"),
    [("all+chunk-loss:rows=16,by=parts+micro-batches:n=2+fused", LAYERS), ("plan+chunk-loss:rows=16", LAYERS[:1])],
)
def test_a_trainer_trains_as_without_the_code(label, layers, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    def weights(code: dict[str, Any]) -> list[torch.Tensor]:
        model = gpt2()
        for name in ("apply_plan", "chunk_loss"):
            code.get(name, id)(model)
        arguments = code["arguments"]
        arguments.output_dir, arguments.max_steps, arguments.save_strategy = str(tmp_path), 2, "no"
        arguments.report_to, arguments.use_cpu, arguments.disable_tqdm = [], True, True
        sizes.append((arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps))
        transformers.Trainer(model, arguments, train_dataset=batches()).train()
        return [*model.parameters()]

    sizes: list[tuple[int, int]] = []
    plain = transformers.TrainingArguments(output_dir=str(tmp_path), per_device_train_batch_size=8)
    for one, other in zip(weights({"arguments": plain}), weights(of_gpt2(label, layers, "hf")), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert sizes == [(8, 1), (4, 2) if "micro-batches" in label else (8, 1)]


@pytest.mark.slow
def test_accelerates_loop_trains_as_a_plain_one():
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    code = of_gpt2("all+chunk-loss:rows=16,by=parts+micro-batches:n=2+fused", LAYERS, "accelerate")
    assert "accelerator" not in of_gpt2("all+fused", LAYERS, "accelerate")  # the script keeps its own
    model = gpt2()
    optimizer = code["apply_levers"](model, torch.optim.SGD(model.parameters(), lr=0.1))
    accelerator = code["accelerator"]
    loader = torch.utils.data.DataLoader(batches(), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()

    plain = gpt2()
    stepping = torch.optim.SGD(plain.parameters(), lr=0.1)
    for batch in torch.utils.data.DataLoader(batches(), batch_size=8):
        plain(**batch).loss.backward()
        stepping.step()
        stepping.zero_grad()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_a_file_of_torchtitan_is_toml_with_its_names():
    text = emit_way(way("plan+chunk-loss+micro-batches:n=2+fused", EACH[1::2], batch_size=8), "torchtitan")

    assert tomllib.loads(text) == {
        "activation_checkpoint": {"mode": "selective", "selective_ac_option": "2"},
        "optimizer": {"implementation": "fused"},
        "training": {"local_batch_size": 4, "global_batch_size": 8},
    }
    assert "chunk-loss has no word in torchtitan" in text


def test_words_of_a_trainer_and_what_waits_in_host_memory_are_in_the_code():
    waiting = emit_way(way("plan+offload-inputs:least=7", EACH[1:2]), "python")

    assert '"h.1": "h.2"' in waiting
    assert "least=7)" in waiting
    assert 'optim="adamw_torch_fused"' in emit_way(way("none+fused"), "hf")


@pytest.mark.parametrize(
    ("label", "kind", "plan", "noun"),
    [
        ("none+in-backward", "hf", (), "clips"),
        ("none+micro-batches:n=3", "hf", (), "a batch of 8 is not 3 equal parts"),
        ("plan", "torchtitan", EACH[:1], "every so many"),
    ],
)
def test_what_has_no_words_is_refused_in_one_line(label, kind, plan, noun):
    with pytest.raises(UserError, match=noun, check=lambda error: "\n" not in error.message and error.hint):
        emit_way(way(label, plan, batch_size=8), kind)


@pytest.mark.slow
def test_the_code_of_what_fits_is_printed_alone(here, capsys):
    model = ("transformer:layers=2,width=32", "--batch-size", "8", "--optimizer", "adamw", "--device", "cpu")
    assert answer(["fit", *model, "--memory", "1GiB", "--json", "-o", "plan.json"]) == 0
    peak = json.loads((said := capsys.readouterr()).out)["ways"][0]["peak_bytes"]
    assert answer(["fit", *model, "--memory", "1GiB", "--emit", "python"]) == 0
    assert capsys.readouterr().out == ""  # it fits as it is
    assert answer(["fit", *model, "--memory", f"{peak * 3 // 4}B", "--emit", "python"]) == 0

    assert "plan.json is not written" in said.err
    code: dict[str, Any] = {}
    exec(capsys.readouterr().out, code)
    assert callable(code["apply_levers"])
