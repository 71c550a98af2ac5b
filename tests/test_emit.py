"""The code that is emitted does what carrying the plan out does, and stands without gcprof."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import nn

import profiler
from profiler.core.case import Choice
from profiler.core.errors import UserError
from profiler.core.plan_file import PlanFile
from profiler.planning.plan_code import KINDS, Way, emit, emit_way
from profiler.predicting.prediction import memory_readings
from profiler.training import strategies
from profiler.training.strategies import carry_out
from profiler.training.workload import Workload
from tests.chain_models import workload
from tests.pasted import BUILDS, LLAMA, apply, counting, named, planned, random_runs, same, stepped
from tests.plans import Saving, all_sorts, plan_of
from tests.rooms import imports
from tests.traced import traced


@pytest.mark.parametrize("build", [build for name, build in BUILDS.items() if name != "cifar-resnet"])
def test_emitted_code_computes_what_carrying_out_does_as_often_with_the_gradients_of_no_checkpointing(build):
    def plan(built: Workload) -> PlanFile:
        return planned(built, all_sorts(len(built.blocks)))

    plain, _ = stepped(build, lambda built: None)
    _, times = stepped(build, lambda built: carry_out(built, plan(built)))

    found, calls = stepped(build, lambda built: apply(emit(plan(built), "python"), built.module))

    assert calls == times
    assert max(calls) > 1
    assert same(found, plain)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["python", "fsdp"])
def test_a_step_of_emitted_code_holds_the_bytes_of_one_that_is_carried_out_and_keeps_what_is_named(kind):
    model = "transformer:layers=6,width=32,sequence=64,vocabulary=16"

    def readings(run: Any, change: Callable[[Workload, PlanFile], object]) -> tuple[int, int]:
        runs = [run] if kind == "fsdp" else [[[0], 1, 2], run]
        trace, _ = traced(model, "own", change=lambda built: change(built, planned(built, runs)))  # the model's own
        found = memory_readings(trace)
        return found["saved_bytes"], found["peak_bytes"]

    def paste(built: Workload, plan: PlanFile) -> None:
        apply(emit(plan, kind), built.module)

    carried, pasted = (readings(Saving([4], "matmul"), change) for change in (carry_out, paste))

    assert pasted == carried
    kept = 4 * 64 * 32 * 4 * (3 + 1 + 4 + 1)  # batch, time, width, bytes; qkv, out, up, down
    assert pasted[0] - readings([4], paste)[0] == kept


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(random_runs())
def test_any_plan_of_six_blocks_is_carried_out_and_emitted_with_equal_gradients_as_often_as_it_says(items):
    runs, told = [item for item in items if not isinstance(item, int)], {}
    build = BUILDS["a loop with an argument"]
    expected, _ = stepped(build, lambda built: None)

    carried, times = stepped(build, lambda built: told.update(carry_out(built, planned(built, runs)).recomputes))
    pasted, calls = stepped(build, lambda built: apply(emit(planned(built, runs), "python"), built.module))

    assert calls == times == [1 + told.get(index, 0) for index in range(6)]
    assert same(carried, expected)
    assert same(pasted, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_emitted_code_imports_nothing_of_gcprof(kind, tmp_path):
    runs = [[1] if kind == "hf" else Saving([1], "matmul")]
    (tmp_path / "pasted.py").write_text(emit(planned(BUILDS["a Sequential"](), runs), kind))

    found = {name.partition(".")[0] for name, _ in imports(tmp_path / "pasted.py")}

    assert "torch" in found or kind == "hf"
    assert found <= {"functools", "torch", "transformers"}


def statistics(change: Callable[[nn.Sequential, PlanFile], object], runs: list[Any]) -> list[torch.Tensor]:
    """The running statistics of a CNN after three training steps under the change."""
    torch.manual_seed(0)
    module = nn.Sequential(
        *(
            nn.Sequential(nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4, momentum=momentum), nn.ReLU())
            for channels, momentum in ((1, 0.1), (4, 0.3), (4, None), (4, None))
        )
    )
    change(module, plan_of(module, tuple("0123"), runs))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        module(torch.randn(4, 1, 12, 12)).square().sum().backward()
        optimizer.step()
    return [buffer for name, buffer in module.named_buffers() if "running" in name]


@pytest.mark.parametrize("runs", [[[[0], 1]], [Saving([1], "matmul"), [3]]])
def test_repaired_batchnorm_has_the_statistics_of_the_plain_model(runs):
    def pasted(kind: str, repair: bool = True) -> Any:
        return lambda module, plan: apply(emit(plan, kind, repair_batchnorm=repair), module)

    def applied(module: nn.Module, plan: PlanFile) -> object:
        return profiler.apply(module, plan, repair_batchnorm=True)

    plain = statistics(lambda module, plan: None, runs)

    wrapped = [] if [[0], 1] in runs else [pasted("fsdp")]  # which has no runs in runs
    for change in (pasted("python"), applied, *wrapped):
        torch.testing.assert_close(statistics(change, runs), plain, rtol=0, atol=0)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(statistics(pasted("python", repair=False), runs), plain)


# --- what is emitted for Hugging Face and FSDP acts on the blocks of the plan alone, or is refused


@pytest.mark.filterwarnings("error:.*checkpointing.*is deprecated:FutureWarning")
def test_hugging_faces_switch_is_set_in_the_layers_of_the_plan_alone_with_the_gradients_of_none():
    expected, _ = stepped(BUILDS["llama"], lambda built: built.module.train())
    inside = [0] * 6  # how often the second half of each layer runs: below whatever is around the layer

    def switched(built: Workload) -> None:
        for index, layer in enumerate(built.module.model.layers):
            layer.mlp.forward = counting(layer.mlp.forward, inside, index)
        apply(emit(planned(built, [[1], [4]]), "hf"), built.module.train())

    found, _ = stepped(BUILDS["llama"], switched)

    assert inside == [1, 2, 1, 1, 2, 1]
    assert same(found, expected)


def test_modules_without_a_switch_are_refused_by_name():
    built = named(LLAMA)
    code = emit(plan_of(built.module, ["model.layers.0.mlp"], [[0]]), "hf")

    with pytest.raises(ValueError, match=r"model\.layers\.0\.mlp"):
        apply(code, built.module)


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_wrapped_for_fsdp_the_modules_of_the_plan_alone_run_again(build):
    runs = [[1], Saving([3], "mm+addmm")]
    expected, times = stepped(build, lambda built: carry_out(built, planned(built, runs)))
    names = list(build().module.state_dict())

    def wrap(built: Workload) -> None:
        apply(emit(planned(built, runs), "fsdp"), built.module)
        assert list(built.module.state_dict()) == names

    found, calls = stepped(build, wrap)

    assert calls == times
    assert sorted(set(calls)) == [1, 2]
    assert same({name.replace("_checkpoint_wrapped_module.", ""): one for name, one in found.items()}, expected)


@pytest.mark.parametrize(
    ("kind", "runs", "complaint"),
    [
        ("fsdp", [[0], [1, 2]], "the segment '1' to '2' computes 2 blocks together"),
        ("hf", [[[4]]], "the segment '4' holds another segment"),
        ("hf", [[0], Saving([5], "matmul")], "the segment '5' keeps the results of matmul; its layers keep nothing"),
    ],
)
def test_what_a_kind_has_no_words_for_is_refused_with_the_segment(kind, runs, complaint):
    plan = planned(BUILDS["a Sequential"](), runs)

    with pytest.raises(UserError, match=f"--emit {kind}: {complaint}", check=lambda e: "--emit python" in e.hint):
        emit(plan, kind)

    assert "apply_plan" in emit(plan, "python")


# --- `selective` where an operator that it keeps draws random numbers: those after it draw as in the forward


class Drawing(nn.Module):
    """A mask, and two that are drawn after it."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        hidden = torch.relu(self.first(x)) * torch.bernoulli(torch.full_like(x, 0.5))
        return x + self.second(hidden) * torch.rand_like(x) * torch.rand(x.shape)


@pytest.mark.parametrize("way", ["bernoulli", "bernoulli+addmm", "addmm", "rand_like", "python", "fsdp"])
def test_gradients_and_the_random_state_are_those_without_checkpoints(way):
    """By `selective`, or by emitted code."""

    def build():
        return workload(nn.Sequential(*[Drawing() for _ in range(3)]), tuple("012"))

    def change(built):
        if way not in KINDS:
            strategies.selective(built, save=way)
            return
        code = emit(planned(built, [Saving([0], "bernoulli+addmm"), Saving([2], "bernoulli")]), way)
        assert "nondeterministic_seeded" in code
        apply(code, built.module)

    plain, _ = stepped(build, lambda built: None)
    state = torch.get_rng_state()
    kept, _ = stepped(build, change)

    assert same({name.replace("_checkpoint_wrapped_module.", ""): one for name, one in kept.items()}, plain)
    assert torch.equal(state, torch.get_rng_state())


# --- code of levers in loops that differ from the one that was measured, against the same loops without it

CLASSES, ROWS = 11, 14
BATCH = torch.arange(4.0 * ROWS).reshape(ROWS, 4).sin(), torch.arange(ROWS) % CLASSES


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 8), nn.Linear(8, CLASSES)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, values):
        return self.head(torch.tanh(self.first(values)) * self.scale)


def of(label: str) -> dict:
    code: dict = {}
    exec(emit_way(Way(label=label, levers=Choice(label).parts[1:], heads={"head.weight": ""}), "python"), code)
    return code


def both(label: str) -> tuple[Net, Net, dict]:
    """Return a model, the same with the code of a label, and that code."""
    torch.manual_seed(0)
    net, code = Net(), of(label)
    return net, copy.deepcopy(net), code


def autocast_outside(net, values, labels):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = net(values)
    return F.cross_entropy(logits.float(), labels)


def masked_in_place(net, values, labels):
    logits = net(values)
    logits[:, 0] = -3.0
    return F.cross_entropy(logits, labels)


def hooked(net, values, labels):
    logits = net(values)
    logits.register_hook(lambda gradient: 2 * gradient)
    return F.cross_entropy(logits, labels)


def of_one(net, values, labels):
    return F.cross_entropy(net(values[0]), labels[0])


def parts_of_five() -> tuple[Net, Net]:
    net, changed, code = both("none+chunk-loss:rows=5,by=parts")
    code["apply_levers"](changed, torch.optim.SGD(changed.parameters()))
    return net, changed


@pytest.mark.parametrize("loss", [autocast_outside, masked_in_place, hooked, of_one])
def test_a_loss_in_parts_is_that_of_the_same_loop_without_it(loss):
    net, changed = parts_of_five()

    whole, parts = loss(net, *BATCH), loss(changed, *BATCH)
    whole.backward()
    parts.backward()

    off = 2**-6 if loss is autocast_outside else 1e-5  # bfloat16 rounds by 2**-8, several times
    assert parts.item() == pytest.approx(whole.item(), rel=off)
    for one, other in zip(net.parameters(), changed.parameters(), strict=True):
        assert (one.grad - other.grad).norm() <= off * one.grad.norm()


def test_a_second_derivative_that_would_be_wrong_is_refused():
    _, changed = parts_of_five()
    made = F.cross_entropy(changed(BATCH[0]), BATCH[1])

    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(made, changed.first.weight, create_graph=True)


@pytest.mark.parametrize(("size", "ignored"), [(3, 0), (7, 2), (8, 2)])
def test_micro_batches_without_a_sample_or_a_target_count_for_nothing(size, ignored):
    net, changed, code = both("none+micro-batches:n=4")
    labels = BATCH[1][:size].clone()
    labels[:ignored] = -100
    batch = BATCH[0][:size], labels
    loss = lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])  # noqa: E731

    whole = loss(net, batch)
    whole.backward()
    parts = code["backward"](changed, batch, loss, lambda part: (part[1] != -100).sum())

    assert parts.item() == pytest.approx(whole.item())
    for one, other in zip(net.parameters(), changed.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-6)


def test_logits_that_keep_their_gradient_are_computed_whole_and_refuse_it_after_their_loss():
    kept = []
    for net in parts_of_five():
        kept.append(net(BATCH[0]))
        kept[-1].retain_grad()
        F.cross_entropy(kept[-1], BATCH[1]).backward()

    assert torch.equal(kept[0].grad, kept[1].grad)
    logits = net(BATCH[0])
    F.cross_entropy(logits, BATCH[1]).backward()
    with pytest.raises(RuntimeError, match="leave chunk-loss out"):
        logits.retain_grad()


def train(net, optimizer, steps: int) -> None:
    """Train as frameworks do that hand the optimizer their step, Lightning for example."""

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(net(BATCH[0]), BATCH[1])
        loss.backward()
        return loss

    for _ in range(steps):
        assert optimizer.step(closure) > 0


@pytest.mark.parametrize("lever", ["in-backward", "bf16-state"])
def test_an_optimizer_of_each_parameter_calls_a_closure_and_saves_its_state(lever):
    net, changed, code = both(f"none+{lever}")
    make = partial(torch.optim.AdamW, lr=0.01, foreach=False)
    plain, levered = make(net.parameters()), code["apply_levers"](changed, make(changed.parameters()))
    train(net, plain, 6)
    train(changed, levered, 3)

    fresh, saved = copy.deepcopy(changed.state_dict()), copy.deepcopy(levered.state_dict())
    again, code = Net(), of(f"none+{lever}")
    again.load_state_dict(fresh)
    resumed = code["apply_levers"](again, make(again.parameters()))
    resumed.load_state_dict(saved)
    train(again, resumed, 3)

    close = 0.005 if lever == "bf16-state" else 0.0  # of weights that moved by 0.06
    for one, other in zip(net.parameters(), again.parameters(), strict=True):
        assert (one - other).abs().max() <= close


@pytest.mark.parametrize("by_model", [True, False])
def test_steps_in_the_backward_see_gradients_that_are_set_to_zeros(by_model, monkeypatch):
    """A part of the model that a step leaves out has its weights decay then, from its first gradient on."""
    monkeypatch.setattr(torch.nn.Module, "zero_grad", torch.nn.Module.zero_grad)  # which the code replaces
    net, changed, code = both("none+in-backward")
    make = partial(torch.optim.SGD, lr=0.1, weight_decay=0.5)
    levered = code["apply_levers"](changed, make(changed.parameters()))
    for model, optimizer in ((net, make(net.parameters())), (changed, levered)):
        for number in range(4):
            (model if by_model else optimizer).zero_grad(set_to_none=False)
            logits = model(BATCH[0]) if number % 2 else next(model.parameters())  # others have zeros then
            logits.square().mean().backward()
            optimizer.step()

    assert all(map(torch.equal, net.parameters(), changed.parameters()))


def test_the_count_of_steps_is_no_state_in_bf16():
    """Of a weight that is a scalar it has the same shape; bfloat16 counts to 256."""
    _, changed, code = both("none+bf16-state")
    optimizer = code["apply_levers"](changed, torch.optim.AdamW(changed.parameters(), foreach=False))
    train(changed, optimizer, 260)

    assert {float(state["step"]) for state in optimizer.state_dict()["state"].values()} == {260.0}
