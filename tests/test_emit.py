"""The code that is emitted does what carrying the plan out does, and stands without gcprof."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from profiler import catalogue, models
from profiler.blocks import find_blocks
from profiler.case import Choice
from profiler.errors import UserError
from profiler.planning.emit import KINDS, emit
from profiler.recipe import Recipe
from profiler.strategies.plan import carry_out
from profiler.trace.summary import readings
from profiler.workload import Workload
from tests.plans import Saving, all_sorts, plan_of
from tests.test_layers import imports
from tests.test_strategies import Counted, InTuples, Looping, workload
from tests.traced import traced

LLAMA = (
    "hf:llama:hidden_size=32,intermediate_size=64,num_attention_heads=2,num_key_value_heads=2,num_hidden_layers=6,"
    "vocab_size=64"
)


def apply(code: str, module: nn.Module) -> None:
    """As if it stood in a file of the user's."""
    namespace: dict[str, Any] = {"__name__": "pasted"}
    exec(compile(code, "pasted.py", "exec"), namespace)
    namespace["apply_plan"](module)


def named(model: str) -> Workload:
    build, options = catalogue.load(Choice(model), models.TABLE)
    built = build(batch_size=2, **options)
    names = built.blocks or find_blocks(built.module)
    return Workload(module=built.module, blocks=names, batch=built.batch, loss=built.loss)


def in_place() -> Workload:
    """Activations that write over their input, the first of which begins a run where a run begins at 1."""
    pairs = [layer for _ in range(3) for layer in (nn.Linear(3, 3), nn.ReLU(inplace=True))]
    return workload(nn.Sequential(*pairs), tuple("012345"))


BUILDS: dict[str, Callable[[], Workload]] = {
    "a Sequential": lambda: workload(nn.Sequential(*[Counted() for _ in range(6)]), tuple("012345")),
    "a loop with an argument": lambda: workload(Looping(), tuple(f"layers.{i}" for i in range(6))),
    "blocks that return tuples": lambda: workload(InTuples(), tuple(f"layers.{i}" for i in range(4))),
    "in-place activations": in_place,
    "the transformer": lambda: named("transformer:layers=6,width=16,sequence=8,vocabulary=11"),
    "a decoder with a mask": lambda: user_decoder(),
    "cifar-resnet": lambda: named("cifar-resnet:depth=2"),
    "llama": lambda: named(LLAMA),
}
PLANS: dict[str, list[Any]] = {
    "singles": [[1], [3]],
    "runs": [[0, 1], [2, 3]],
    "a run in a run": [[[0], 1, 2]],
    "a run that begins in its midst": [[1, [2, 3]]],
    "a save option": [Saving([0], "matmul"), [1, Saving([2], "matmul+attention"), 3]],
    "nothing": [],
}


def user_decoder() -> Workload:
    from tests.user_models.extra_arguments import DecoderLayer

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([DecoderLayer(8) for _ in range(6)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask, rotation = torch.ones(5, 5, dtype=torch.bool).triu(1), torch.arange(5.0).cos()[:, None]
            for layer in self.layers:
                x = layer(x, mask, rotation=rotation, scale=0.5)
            return x

    return Workload(
        module=Masked(),
        blocks=tuple(f"layers.{i}" for i in range(6)),
        batch=torch.ones(2, 5, 8),
        loss=lambda module, x: module(x).sum(),
    )


def stepped(build: Callable[[], Workload], change: Callable[[Workload], object]) -> tuple[dict[str, Any], list[int]]:
    """Loss, gradients and buffers of one step after the change, and how often each block ran in it."""
    torch.manual_seed(0)
    built = build()
    calls = [0] * len(built.blocks)
    for index, name in enumerate(built.blocks):
        block = built.module.get_submodule(name)
        block.forward = counting(block.forward, calls, index)
    change(built)
    calls[:] = [0] * len(calls)
    torch.manual_seed(1)
    loss = built.loss(built.module, built.batch)
    loss.backward()
    found = {"loss": loss.detach(), **{f"buffer {name}": one for name, one in built.module.named_buffers()}}
    return found | {name: one.grad for name, one in built.module.named_parameters()}, calls


def counting(forward: Callable[..., Any], calls: list[int], index: int) -> Callable[..., Any]:
    def counted(*arguments: Any, **keywords: Any) -> Any:
        calls[index] += 1
        return forward(*arguments, **keywords)

    return counted


def planned(built: Workload, runs: list[Any]) -> Recipe:
    return plan_of(built.module, built.blocks, runs)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one if one[name] is not None)


@pytest.mark.parametrize("runs", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_emitted_code_computes_what_carrying_out_does_as_often(build, runs):
    expected, times = stepped(build, lambda built: carry_out(built, planned(built, runs)))

    found, calls = stepped(build, lambda built: apply(emit(planned(built, runs), "python"), built.module))

    assert calls == times
    assert (max(calls) > 1) == bool(runs)
    assert same(found, expected)


@pytest.mark.parametrize("build", [build for name, build in BUILDS.items() if name != "cifar-resnet"])
def test_gradients_are_those_without_checkpointing(build):
    expected, _ = stepped(build, lambda built: None)

    found, _ = stepped(
        build, lambda built: apply(emit(planned(built, all_sorts(len(built.blocks))), "python"), built.module)
    )

    assert same(found, expected)


def test_other_gradients_would_be_seen():
    found, _ = stepped(in_place, lambda built: None)
    other, _ = stepped(in_place, lambda built: nn.init.ones_(built.module[0].weight))

    assert not same(found, other)


def test_an_in_place_activation_that_begins_a_run_would_write_over_its_input():
    code = emit(planned(in_place(), [[1, 2]]), "python")

    without = code.replace("first.inplace = False", "pass")

    stepped(in_place, lambda built: apply(code, built.module))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        stepped(in_place, lambda built: apply(without, built.module))


def test_a_step_of_emitted_code_holds_the_bytes_of_one_that_is_carried_out():
    model = "transformer:layers=6,width=32,sequence=64,vocabulary=16"
    plan = planned(named(model), [[[0], 1, 2], Saving([4], "matmul")])
    code = emit(plan, "python")

    none, carried, pasted = (
        readings(traced(model, change=change)[0])
        for change in (None, lambda built: carry_out(built, plan), lambda built: apply(code, built.module))
    )

    assert pasted["saved_bytes"] == carried["saved_bytes"] < none["saved_bytes"] * 0.7
    assert pasted["peak_bytes"] == carried["peak_bytes"] < none["peak_bytes"]


@st.composite
def random_runs(draw: st.DrawFn, start: int = 0, stop: int = 6, deep: int = 3) -> list[Any]:
    """Indices in their order, some of them in runs."""
    items: list[Any] = []
    while start < stop:
        end = draw(st.integers(start + 1, stop))
        if deep and draw(st.booleans()):
            run = draw(random_runs(start, end, deep - 1))
            plain = all(isinstance(item, int) for item in run)
            items.append(Saving(run, "matmul") if plain and draw(st.booleans()) else run)
        else:
            items += range(start, end)
        start = end
    return items


@settings(max_examples=60, deadline=None)
@given(random_runs())
def test_any_plan_of_six_blocks_is_emitted_as_it_is_carried_out(items):
    runs = [item for item in items if not isinstance(item, int)]
    build = BUILDS["a loop with an argument"]
    expected, times = stepped(build, lambda built: carry_out(built, planned(built, runs)))

    found, calls = stepped(build, lambda built: apply(emit(planned(built, runs), "python"), built.module))

    assert calls == times
    assert same(found, expected)


def test_names_of_parameters_stay_and_a_deep_copy_computes_with_its_own_weights():
    module, x = nn.Sequential(*[Counted() for _ in range(4)]), torch.ones(2, 3)
    names = list(module.state_dict())
    apply(emit(plan_of(module, tuple("0123"), [[[0], 1], Saving([2], "matmul")]), "python"), module)

    twin = copy.deepcopy(module)
    for parameter in twin.parameters():
        nn.init.zeros_(parameter)
    twin(x).sum().backward()

    assert list(module.state_dict()) == names
    assert not twin(x).any()
    assert all(parameter.grad is not None for parameter in twin.parameters())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_names_that_are_no_words_and_long_lists_are_written_as_they_are():
    module = nn.Sequential()
    for index in range(40):
        module.add_module(f'a "long", [odd] $name {index} \\', Counted())
    blocks = [name for name, _ in module.named_children()]
    code = emit(plan_of(module, blocks, [range(39), [39]]), "python")

    apply(code, module)
    module(torch.ones(2, 3)).sum().backward()

    assert [block.calls for block in module] == [2] * 40
    assert max(map(len, code.splitlines())) <= 120


def test_a_plan_of_several_lines_stays_in_its_comment():
    odd = Recipe(plan='"""\nraise SystemExit\r[1]', segments=(), fingerprint={})

    for kind in KINDS:
        apply(emit(odd, kind), named(LLAMA).module)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("save", [None, "matmul"])
def test_emitted_code_imports_nothing_of_gcprof(kind, save, tmp_path):
    built = BUILDS["a Sequential"]()
    code = emit(planned(built, [[1] if save is None or kind == "hf" else Saving([1], save)]), kind)

    (tmp_path / "pasted.py").write_text(code)
    (tmp_path / "other.py").write_text(code + "from profiler import recipe\n")

    assert imported(tmp_path / "pasted.py") <= {"functools", "torch", "transformers"}
    assert "profiler" in imported(tmp_path / "other.py")


def imported(path: Any) -> set[str]:
    return {name.partition(".")[0] for name, _ in imports(path)}


def test_emitted_code_is_short():
    built = BUILDS["a Sequential"]()

    lengths = {kind: len(emit(planned(built, [[1]]), kind).splitlines()) for kind in KINDS}

    assert lengths["python"] <= 62
    assert max(lengths["hf"], lengths["fsdp"]) <= 25


def perceptron_calls(module: nn.Module) -> list[int]:
    """How often the second half of each layer of a Llama runs in a step: below whatever is around the layer."""
    batch = named(LLAMA).batch
    calls = [0] * 6
    for index, layer in enumerate(module.model.layers):
        layer.mlp.forward = counting(layer.mlp.forward, calls, index)
    module.train()(**batch).loss.backward()
    return calls


def test_hugging_faces_switch_is_set_in_the_layers_of_the_plan_alone():
    built, other = named(LLAMA), named(LLAMA)
    code = emit(planned(built, [[1], [4]]), "hf")

    apply(code, built.module)
    other.module.gradient_checkpointing_enable()

    assert perceptron_calls(built.module) == [1, 2, 1, 1, 2, 1]
    assert perceptron_calls(other.module) == [2, 2, 2, 2, 2, 2]


def test_gradients_under_hugging_faces_switch_are_those_without_checkpointing():
    expected, _ = stepped(BUILDS["llama"], lambda built: built.module.train())

    found, _ = stepped(
        BUILDS["llama"], lambda built: apply(emit(planned(built, [[1], [4]]), "hf"), built.module.train())
    )

    assert same(found, expected)


def test_modules_without_a_switch_are_refused_by_name():
    built = named(LLAMA)
    code = emit(plan_of(built.module, ["model.layers.0.mlp"], [[0]]), "hf")

    with pytest.raises(ValueError, match=r"model\.layers\.0\.mlp"):
        apply(code, built.module)


@pytest.mark.parametrize("runs", [[[1], [4]], [Saving([1], "matmul"), [4], Saving([5], "mm+addmm")]])
@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_wrapped_for_fsdp_the_modules_of_the_plan_alone_run_again(build, runs):
    if len(build().blocks) < 6:
        runs = [[1], Saving([3], "matmul")]
    expected, times = stepped(build, lambda built: carry_out(built, planned(built, runs)))
    names = list(build().module.state_dict())

    def wrap(built: Workload) -> None:
        apply(emit(planned(built, runs), "fsdp"), built.module)
        assert list(built.module.state_dict()) == names

    found, calls = stepped(build, wrap)

    assert calls == times
    assert sorted(set(calls)) == [1, 2]
    assert same({name.replace("_checkpoint_wrapped_module.", ""): one for name, one in found.items()}, expected)


def test_wrapped_for_fsdp_a_save_option_keeps_what_it_names():
    model = "transformer:layers=6,width=32,sequence=64,vocabulary=16"
    saved = {
        save: readings(traced(model, change=changed)[0])["saved_bytes"]
        for save, changed in {
            save: lambda built, save=save: apply(
                emit(planned(built, [Saving([2], save) if save else [2]]), "fsdp"), built.module
            )
            for save in (None, "matmul")
        }.items()
    }

    kept = 4 * 64 * 32 * 4 * (3 + 1 + 4 + 1)  # batch, time, width, bytes; qkv, out, up, down
    assert saved["matmul"] - saved[None] == kept


@pytest.mark.parametrize(
    ("kind", "runs", "complaint"),
    [
        ("hf", [[0], [1, 2, 3]], "the segment '1' to '3' computes 3 blocks together"),
        ("fsdp", [[0], [1, 2]], "the segment '1' to '2' computes 2 blocks together"),
        ("hf", [[[4]]], "the segment '4' holds another segment"),
        ("fsdp", [[[4]]], "the segment '4' holds another segment"),
        ("hf", [[0], Saving([5], "matmul")], "the segment '5' keeps the results of matmul; its layers keep nothing"),
    ],
)
def test_what_a_kind_has_no_words_for_is_refused_with_the_segment(kind, runs, complaint):
    plan = planned(BUILDS["a Sequential"](), runs)

    with pytest.raises(UserError) as caught:
        emit(plan, kind)

    assert caught.value.message == f"--emit {kind}: {complaint}"
    assert caught.value.hint == "--emit python has words for every plan; or plan blocks one by one"
    assert "apply_plan" in emit(plan, "python")


def test_a_kind_that_is_not_known_is_refused():
    with pytest.raises(UserError, match="--emit: 'jax' is not known"):
        emit(Recipe(plan="", segments=(), fingerprint={}), "jax")
