"""What is emitted for Hugging Face and FSDP acts on the blocks of the plan alone, or is refused."""

from __future__ import annotations

import pytest
from torch import nn

from profiler.core.errors import UserError
from profiler.planning.plan_code import emit
from profiler.predicting.prediction import memory_readings
from profiler.training.strategies.plan import carry_out
from profiler.training.workload import Workload
from tests.pasted import BUILDS, LLAMA, apply, counting, named, planned, same, stepped
from tests.plans import Saving, plan_of
from tests.traced import traced


def perceptron_calls(module: nn.Module) -> list[int]:
    """How often the second half of each layer of a Llama runs in a step: below whatever is around the layer."""
    batch = named(LLAMA).batch
    calls = [0] * 6
    for index, layer in enumerate(module.model.layers):
        layer.mlp.forward = counting(layer.mlp.forward, calls, index)
    module.train()(**batch).loss.backward()
    return calls


@pytest.mark.slow
def test_hugging_faces_switch_is_set_in_the_layers_of_the_plan_alone():
    built, other = named(LLAMA), named(LLAMA)
    code = emit(planned(built, [[1], [4]]), "hf")

    apply(code, built.module)
    other.module.gradient_checkpointing_enable()

    assert perceptron_calls(built.module) == [1, 2, 1, 1, 2, 1]
    assert perceptron_calls(other.module) == [2, 2, 2, 2, 2, 2]


@pytest.mark.filterwarnings("error:.*checkpointing.*is deprecated:FutureWarning")
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


@pytest.mark.slow
def test_wrapped_for_fsdp_a_save_option_keeps_what_it_names():
    model = "transformer:layers=6,width=32,sequence=64,vocabulary=16"
    saved = {
        save: memory_readings(traced(model, "own", change=changed)[0])["saved_bytes"]
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
    assert caught.value.hint == "--emit python can express every plan; or plan blocks one by one"
    assert "apply_plan" in emit(plan, "python")
