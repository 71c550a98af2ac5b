"""Levers: named after a strategy, `all+chunk-loss+fused`; what they change of a step, against plain PyTorch."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET

from profiler.core.case import Case, Choice, decode, encode, split_choices
from profiler.core.choices import LEVERS
from profiler.core.errors import UserError
from profiler.request import spec
from profiler.request.spec import Request
from profiler.training import levers


def _case(**fields):
    return Case(model=Choice("mlp"), strategy=Choice("none"), optimizer=Choice("adamw"), batch_size=8, device="cpu")


def test_table_has_the_order_of_labels():
    assert tuple(levers.TABLE) == tuple(LEVERS)


def test_a_case_without_levers_is_stored_as_before():
    assert b"levers" not in encode(_case())
    assert _case().under(Choice("all")) == msgspec.structs.replace(_case(), strategy=Choice("all"))


def test_a_label_is_canonical_and_makes_the_case():
    label = levers.resolved(Choice("fused"))
    case = _case().under(label)

    assert (label, case.strategy, case.levers) == ("none+fused", "none", ("fused",))
    assert decode(encode(case), Case) == case != case.baseline == _case()
    assert case.label == label
    assert case.id != case.baseline.id
    assert case.baseline.levers is UNSET


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("segments:k=2|4+fused,all", ["segments:k=2+fused", "segments:k=4+fused", "all"]),
        ("selective:save=mm+gelu+fused", ["selective:save=mm+gelu+fused"]),
        ("segments:k=2,split=balanced+fused", ["segments:k=2,split=balanced+fused"]),
    ],
)
def test_levers_are_read_in_a_list_of_strategies(text, labels):
    assert [levers.resolved(choice) for choice in split_choices(text)] == labels


@pytest.mark.parametrize(
    ("strategies", "optimizer", "noun"),
    [
        ("all+fuse", "adamw", "fuse"),
        ("all+fused+fused", "adamw", "twice"),
        ("all+fused", "torch:AdamW:fused=true", "kernels"),
        ("all+fused", "torch:AdamW:foreach=true", "kernels"),
    ],
)
def test_what_cannot_be_meant_is_refused(strategies, optimizer, noun):
    words = Request(model="mlp", strategies=strategies, optimizer=optimizer)

    with pytest.raises(UserError, match=noun) as refusal:
        spec.check(words, lambda word: "cpu")

    assert refusal.value.exit_code == 2
