"""Levers: named after a strategy, `all+chunk-loss+fused`; what they change of a step, against plain PyTorch."""

import copy
import sys
from functools import partial
from types import ModuleType
from typing import Any

import msgspec
import pytest
import torch
from msgspec import UNSET
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.utils import _pytree as pytree

from profiler.core import catalogue
from profiler.core.case import Case, Choice, Trial, decode, encode, split_choices
from profiler.core.errors import Unsupported, UserError
from profiler.measuring.trial import measure
from profiler.training import chunked_loss, optimizers, resolved_label
from profiler.training.assemble import assemble
from profiler.training.models import TABLE
from profiler.training.workload import Workload, compared
from profiler.workflows import spec
from profiler.workflows.spec import Request
from tests import make
from tests.families import FAMILIES, LLAMA
from tests.small_heads import STEPS, reading, step

_case = partial(make.case, model=Choice("mlp"), optimizer=Choice("adamw"), batch_size=8)


def test_a_label_is_canonical_and_makes_the_case():
    label = resolved_label(Choice("fused"))
    case = _case().under(label)

    assert (label, case.strategy, case.levers) == ("none+fused", "none", ("fused",))
    assert decode(encode(case), Case) == case != case.baseline == _case()
    assert case.label == label
    assert case.id != case.baseline.id
    assert case.baseline.levers is UNSET
    assert b"levers" not in encode(case.baseline)  # stored as before there were levers
    labels = ["segments:k=2+fused", "segments:k=4+fused", "selective:save=mm+gelu+fused"]
    assert [resolved_label(one) for one in split_choices("segments:k=2|4+fused,selective:save=mm+gelu+fused")] == labels


@pytest.mark.parametrize(
    ("strategies", "optimizer", "noun"),
    [
        ("all+fuse", "adamw", "fuse"),
        ("all+fused+fused", "adamw", "twice"),
        ("all+fused", "torch:AdamW:foreach=true", "kernels"),
        ("all+8bit+bf16-state", "adamw", "state"),
        ("all+micro-batches:n=2+in-backward", "adamw", "once for each"),
    ],
)
def test_what_cannot_be_meant_is_refused(strategies, optimizer, noun):
    words = Request(model="mlp", strategies=strategies, optimizer=optimizer)

    with pytest.raises(UserError, match=noun, check=lambda error: error.exit_code == 2):
        spec.check(words, lambda word: "cpu")


# gradients


def _built(build, label, **fields):
    case = _case(**fields).under(resolved_label(Choice(label)))
    torch.manual_seed(0)
    return assemble(case, build=build)


def _gradients(built) -> dict[str, torch.Tensor]:
    built.gradients()
    return {name: leaf.grad.double() for name, leaf in compared(built.workload).items() if leaf.grad is not None}


def _in_double(build):
    def doubled():
        made = build()
        batch = pytree.tree_map_only(torch.Tensor, lambda t: t.double() if t.is_floating_point() else t, made.batch)
        return msgspec.structs.replace(made, module=made.module.double(), batch=batch)

    return doubled


def _apart(gradients, exact) -> float:
    """How far gradients are from the exact ones, of the norm of all."""
    assert gradients.keys() == exact.keys()
    squares = sum(float((gradients[name] - exact[name]).square().sum()) for name in exact)
    return (squares / sum(float(gradient.square().sum()) for gradient in exact.values())) ** 0.5


IN_PARTS = ("chunk-loss:rows=5,by=parts", "chunk-loss:rows=16", "all+chunk-loss:rows=16,by=parts")
IN_BATCHES = ("micro-batches:n=3", "all+chunk-loss:rows=8,by=parts+micro-batches:n=4")


@pytest.mark.parametrize(
    ("label", "name"),
    [
        *((label, name) for label in IN_PARTS for name in STEPS),
        *((label, name) for label in IN_BATCHES for name in STEPS if name != "functional head"),
    ],
)
def test_gradients_are_within_rounding_of_float64(name, label, monkeypatch):
    monkeypatch.setattr(chunked_loss, "SLICE", 60)  # so that a part is in float32 slice by slice
    build = STEPS[name]
    exact = _gradients(_built(_in_double(build), "none"))
    plain = _apart(_gradients(_built(build, "none")), exact)

    assert 0 < _apart(_gradients(_built(build, label)), exact) < 4 * plain < 1e-5


def _measured(build, label, **fields):
    """The record of a case under a label, by the equality pass that `gcprof run` takes."""
    case = _case(**fields)
    baseline = measure(Trial(case=case, passes=("equality",)), build=build)
    trial = Trial(case=case.under(resolved_label(Choice(label))), passes=("equality",))
    return measure(msgspec.structs.replace(trial, digests=baseline.equality.digests), build=build)


@pytest.mark.parametrize(
    "label",
    ["chunk-loss:rows=16,by=parts", "all+chunk-loss+fused", "all+chunk-loss:by=parts+fused+in-backward", "bf16-state"],
)
def test_the_equality_pass_takes_rounding_and_levers_of_the_optimizer_for_no_fault(label):
    record = _measured(partial(step, tied=False, bias=True), label)

    assert (record.outcome, record.detail) == ("ok", None)
    assert record.equality.gradients_equal is not ("chunk-loss" in label)


@pytest.mark.parametrize("precision", ["amp-bf16", "bf16"])
def test_rounding_in_half_precision_is_judged_by_the_norm_of_all_gradients(monkeypatch, precision):
    """Where single gradients differ by more than noise, as in a loss in parts on an H200."""
    monkeypatch.setattr("profiler.core.record.NOISE_MARGIN", 0.0)
    label, after = "chunk-loss:rows=48,by=parts", chunked_loss.Logits.after

    record = _measured(STEPS["own head with a bias"], label, precision=precision)

    assert (record.outcome, record.detail) == ("ok", None)
    assert "GCP072" in {note.code for note in record.notes}
    dropping = lambda logits, values: after(logits, values) * (values.shape[0] == 48)  # noqa: E731
    monkeypatch.setattr(chunked_loss.Logits, "after", dropping)  # the last chunk, which is shorter, has no gradient
    assert _measured(STEPS["own head with a bias"], label, precision=precision).outcome == "invalid"


def test_a_loss_in_parts_of_which_no_target_counts_has_gradients_of_zero_as_the_whole_one_has():
    module, batch = torch.nn.Linear(8, 20), (torch.randn(40, 8), torch.full((40,), -100))
    loss = lambda module, batch: torch.nn.functional.cross_entropy(module(batch[0]), batch[1])  # noqa: E731
    build = lambda: Workload(module=copy.deepcopy(module), batch=batch, loss=loss)  # noqa: E731

    gradients = _gradients(_built(build, "chunk-loss:rows=16"))

    assert not any(gradient.any() for gradient in gradients.values())
    assert gradients.keys() == _gradients(_built(build, "none")).keys()
    assert _measured(build, "chunk-loss:rows=16").outcome == "ok"


def test_a_loss_in_parts_is_a_mean_whose_sum_may_overflow_its_type():
    head, hidden, labels = torch.nn.Linear(8, 20).half(), torch.randn(40000, 8).half(), torch.randint(20, (40000,))
    exact = torch.nn.functional.cross_entropy(copy.deepcopy(head).double()(hidden.double()), labels)
    chunked_loss.put_off(head, ["weight"], chunked_loss.Heads(partial(chunked_loss.by_parts, rows=30000)))

    loss = torch.nn.functional.cross_entropy(head(hidden), labels)

    with torch.no_grad():
        evaluated = torch.nn.functional.cross_entropy(head(hidden), labels)
    assert loss.dtype == evaluated.dtype == torch.float16
    assert [float(loss), float(evaluated)] == pytest.approx([float(exact)] * 2, rel=1e-3)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward"):
        loss.backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_that_are_summed_over_parts_are_rounded_as_those_of_the_whole_loss(dtype):
    torch.manual_seed(0)
    linear, values, labels = torch.nn.Linear(8, 20), torch.randn(4096, 8), torch.randint(20, (4096,)).sort().values
    given = torch.tensor(1.5), torch.randn(20), values

    def gradients(kind, rows=0):
        head = copy.deepcopy(linear).to(dtype).to(kind)
        scale, offset, hidden = (one.to(dtype).to(kind, copy=True).requires_grad_() for one in given)
        if rows:
            chunked_loss.put_off(head, ["weight"], chunked_loss.Heads(partial(chunked_loss.by_parts, rows=rows)))
        torch.nn.functional.cross_entropy(head(hidden) * scale + offset, labels).backward()
        return [one.grad.double() for one in (scale, offset, head.bias)]

    for exact, plain, part in zip(gradients(torch.float64), gradients(dtype), gradients(dtype, rows=8), strict=True):
        rounding = max(float((plain - exact).norm()), torch.finfo(dtype).eps * float(exact.norm()))
        assert float((part - exact).norm()) < 2 * rounding


@pytest.mark.parametrize("label", [20, -1])
def test_a_label_that_is_no_class_raises_what_plain_pytorch_raises(label):
    head = torch.nn.Linear(8, 20)
    loss = partial(torch.nn.functional.cross_entropy, target=torch.tensor([0, -100, label, 30]))
    with pytest.raises(IndexError) as plain:
        loss(head(torch.ones(4, 8)))
    chunked_loss.put_off(head, ["weight"], chunked_loss.Heads(partial(chunked_loss.by_parts, rows=2)))

    with pytest.raises(IndexError, match=str(plain.value)):
        loss(head(torch.ones(4, 8)))


def test_a_part_has_more_rows_of_a_small_vocabulary_and_a_quarter_of_all_at_most():
    rows = {(32768, 50257): 1024, (32768, 256): 8192, (1 << 20, 2048): 4096, (4000, 256): 1024}

    assert {(n, v): chunked_loss.rows_of(torch.empty(v, 1), torch.empty(n, 1)) for n, v in rows} == rows


def test_a_loss_in_parts_computes_no_product_twice():
    def flops(label):
        record = measure(Trial(case=_case().under(resolved_label(Choice(label))), passes=("flops",)), build=step)
        assert not record.notes  # as of what a lever keeps on ctx, which no user can change
        return record.readings.forward_flops + record.readings.backward_flops

    assert flops("chunk-loss:by=torch") == flops("chunk-loss:by=parts") == flops("none")


# the optimizer


@pytest.mark.parametrize(
    ("label", "most"), [("in-backward", 1), ("in-backward", 5000), ("all+in-backward", 25 << 20), ("no-foreach", 1)]
)
@pytest.mark.parametrize("optimizer", ["adamw", "momentum", "torch:Adagrad"])
def test_in_backward_steps_once_as_plain_pytorch_does(optimizer, label, most, monkeypatch):
    in_buckets = optimizers.in_buckets
    monkeypatch.setattr(optimizers, "in_buckets", lambda weights, _: in_buckets(weights, most))
    options = {"initial_accumulator_value": 0.5} if optimizer == "torch:Adagrad" else {}
    levered, built = (_built(step, word, optimizer=Choice.of(optimizer, options)) for word in (label, "none"))
    _, run = levered.trainer()
    for number in range(1, 4):
        levered.seed(number)
        run(lambda phase: None)

    module, batch = built.workload.module, built.workload.batch
    kind = {
        "adamw": partial(torch.optim.AdamW, lr=0.001),
        "momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        "torch:Adagrad": partial(torch.optim.Adagrad, **options),
    }
    stepping = kind[optimizer](module.parameters(), foreach=False)
    for _ in range(3):
        stepping.zero_grad()
        built.workload.loss(module, batch).backward()
        stepping.step()

    assert all(map(torch.equal, levered.workload.module.parameters(), module.parameters()))


def normed():
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    return Workload(module=module, batch=torch.randn(4, 4), loss=lambda module, batch: module(batch).sum())


@pytest.mark.parametrize(
    ("label", "fields", "noun"),
    [
        ("chunk-loss", {"build": partial(step, reading)}, r"argmax at small_heads\.py:\d+"),
        ("micro-batches:n=2", {"build": normed}, "BatchNorm"),
        ("in-backward", {"accumulate": 2}, "--accumulate"),
        ("in-backward", {"precision": "amp-fp16"}, "amp-fp16"),
        ("chunk-loss", {"parallel": Choice("ddp")}, "whole"),
        ("micro-batches:n=5", {}, "4 samples, which are not 5"),
        ("offload-inputs", {}, "checkpoints no block"),
        ("8bit", {"optimizer": Choice("momentum")}, "8-bit"),
        ("bf16-state", {"optimizer": Choice("torch:LBFGS")}, "all parameters at once"),
        ("expandable-segments", {}, "CPU"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(label, fields, noun):
    with pytest.raises(Unsupported, match=noun):
        _built(**{"build": step, "label": label, **fields}).trainer()


@pytest.mark.parametrize(("label", "sizes"), [("in-backward", [6]), ("in-backward:mib=1", [1] * 6)])
def test_a_bucket_has_so_many_mib_or_one_parameter(label, sizes):
    module = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(3)))  # weights of 1 MiB
    loss = lambda module, batch: module(batch).sum()  # noqa: E731

    optimizer, _ = _built(partial(Workload, module=module, batch=torch.ones(1, 512), loss=loss), label).trainer()

    assert [len(part.param_groups[0]["params"]) for part in optimizer.parts] == sizes


@pytest.mark.parametrize("label", ["in-backward", "bf16-state", "no-foreach"])
def test_an_optimizer_that_clips_before_its_step_is_not_replaced(label):
    def clipping(parameters):
        made = torch.optim.AdamW(parameters := list(parameters))
        made.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_norm_(parameters, 1.0))
        return made

    with pytest.raises(Unsupported, match="clips"):
        _built(lambda: msgspec.structs.replace(step(), optimizer=clipping), label).trainer()


def test_a_bucket_steps_once_all_its_gradients_are_there_which_are_freed_then():
    """One of which a parameter gets no gradient waits for the optimizer's step."""
    module = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
    assert [len(one) for one in optimizers.in_buckets(module.parameters(), 2 * 4 * (4 * 4 + 4))] == [4, 2]
    plain, unused = copy.deepcopy(module), torch.nn.Parameter(torch.ones(2))
    groups = [{"params": [*module[:2].parameters()]}, {"params": [*module[2].parameters(), unused]}]
    stepping = optimizers.Buckets(torch.optim.SGD(groups, lr=0.1))
    optimizers.step_in_backward(stepping)

    module(torch.ones(2, 4)).sum().backward()

    assert [one.grad is None for one in module.parameters()] == [True] * 4 + [False] * 2
    stepping.step()
    plain(torch.ones(2, 4)).sum().backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    assert all(map(torch.equal, module.parameters(), plain.parameters()))
    assert torch.equal(unused, torch.ones(2))


def test_buckets_are_saved_loaded_and_scheduled_as_one_optimizer_is():
    """PyTorch's distributed checkpoints step an optimizer that has no state, to make one."""
    module = torch.nn.Linear(4, 4)
    stepping = optimizers.Buckets(torch.optim.AdamW(module.named_parameters()), 1)
    first = copy.deepcopy(stepping.state_dict())
    schedule = torch.optim.lr_scheduler.OneCycleLR(stepping, 0.1, total_steps=4)
    module(torch.ones(2, 4)).sum().backward()
    stepping.step()
    module.zero_grad()
    schedule.step()

    saved: Any = get_optimizer_state_dict(module, stepping)["state"]

    assert [float(saved[name]["step"]) for name in ("weight", "bias")] == [1.0, 1.0]
    assert {group["betas"][0] for group in stepping.param_groups} != {0.9}
    stepping.load_state_dict(first)
    assert not stepping.state_dict()["state"]


def test_a_weight_in_two_reentrant_checkpoints_is_not_stepped_twice():
    linear = torch.nn.Linear(4, 4)
    again = partial(torch.utils.checkpoint.checkpoint, linear, use_reentrant=True)
    batch = torch.randn(2, 4, requires_grad=True)
    build = partial(Workload, module=linear, batch=batch, loss=lambda module, batch: again(again(batch)).sum())
    _, run = _built(build, "own+in-backward").trainer()

    with pytest.raises(Unsupported, match="twice"):
        run(lambda phase: None)


def test_state_in_8_bits_is_of_all_groups(monkeypatch):
    groups = [{"params": [torch.zeros(2, requires_grad=True)], "lr": rate} for rate in (0.1, 0.2)]
    workload = msgspec.structs.replace(step(), optimizer=lambda parameters: torch.optim.AdamW(groups))
    library = ModuleType("torchao.optim")
    monkeypatch.setattr(library, "AdamW8bit", torch.optim.AdamW, raising=False)
    monkeypatch.setitem(sys.modules, "torchao.optim", library)

    made, _ = _built(lambda: workload, "8bit").trainer()

    assert [group["lr"] for group in made.param_groups] == [0.1, 0.2]


def test_state_in_bf16_is_half_the_bytes():
    optimizer, run = _built(step, "bf16-state").trainer()
    run(lambda phase: None)

    states = [value for _, state in optimizers.states(optimizer) for value in state.values() if value.ndim]
    assert states
    assert {value.dtype for value in states} == {torch.bfloat16}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_micro_batches_count_targets_by_the_weights_of_their_classes(reduction):
    """By these plain PyTorch divides a mean; it is given its arguments by their places."""
    weight, head = torch.tensor([0.1, 3.0, 1.0]), torch.nn.Linear(5, 3)
    batch = torch.randn(6, 5), torch.tensor([0, 0, 1, 1, 2, -100])

    def loss(module, batch):
        logits = module(batch[0])
        return torch.nn.functional.cross_entropy(logits, batch[1], weight.to(logits), None, -100, None, reduction)

    build = partial(Workload, module=head, batch=batch, loss=loss)

    assert _apart(_gradients(_built(build, "micro-batches:n=2")), _gradients(_built(_in_double(build), "none"))) < 1e-6


@pytest.mark.parametrize("dropped", ["module", "attention", "none"])
def test_micro_batches_of_a_model_with_dropout_are_compared_without_it(monkeypatch, dropped):
    loss = lambda module, batch: module(batch).square().mean()  # noqa: E731
    build = partial(Workload, module=Dropping(dropped), batch=torch.randn(8, 4, 6), loss=loss)

    record = _measured(build, "micro-batches:n=2")

    assert (record.outcome, record.detail) == ("ok", None)
    assert ("GCP073" in {note.code for note in record.notes}) is (dropped != "none")
    monkeypatch.setattr("profiler.training.memory_levers._shares", lambda counts: [1.0] * len(counts))
    assert _measured(build, "micro-batches:n=2").outcome == "invalid"


class Dropping(torch.nn.Module):
    def __init__(self, way):
        super().__init__()
        self.linear, self.way, self.drop = torch.nn.Linear(6, 6), way, torch.nn.Dropout(0.5)

    def forward(self, x):
        return self.dropped(self.linear(self.dropped(self.linear(x))))  # the second draws after the first

    def dropped(self, x):
        if self.way == "module":
            return self.drop(x)
        p = 0.4 if self.way == "attention" else 0.0
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=p)


HEADED = (*(model for model in FAMILIES if "hf:" in model and ":vit:" not in model), f"hf:gemma2:{LLAMA},head_dim=16")


@pytest.mark.slow
@pytest.mark.parametrize("model", HEADED, ids=lambda model: model.split(":")[1])
def test_the_head_of_a_family_of_transformers_is_found(model):
    pytest.importorskip("transformers")
    build, options = catalogue.load(catalogue.resolve(Choice(model), TABLE), TABLE)
    made = build(batch_size=2, **{"sequence": 16, **options})
    made.module.eval()  # without dropout the loss can be compared

    chunked, _ = chunked_loss.apply(made, _case(), rows=8, by="parts")

    with torch.no_grad():
        assert float(chunked.loss(made.module, made.batch)) == pytest.approx(float(made.loss(made.module, made.batch)))
