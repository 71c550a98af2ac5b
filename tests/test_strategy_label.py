"""What strategies are called on screens: plans by what they are, with their folder in the foot of the table."""

from __future__ import annotations

import pytest

from profiler.core.case import Choice
from profiler.core.strategy_label import files_of_labels, strategy_label, strategy_labels

RUN = "results/20261123T042836Z-plan-transformer-85e041/plans"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "label"),
    [
        ("none", "none"),
        ("segments:k=4", "segments:k=4"),
        (f"plan:file={RUN}/plan.json", "plan"),
        (f"plan:file={RUN}/uniform-4.json", "uniform(4)"),
        (f"plan:file={RUN}/first-12.json", "first(12)"),
        (f"plan:file={RUN}/all.json", "all"),
        (f"plan:file={RUN}/mine-4.json", "mine-4"),
        ("plan", "plan"),
        ("plan:file=mine.json", "plan:file=mine.json"),
        ("plan:file=/home/me/mine.json", "plan:mine.json"),
    ],
)
def test_a_plan_is_called_by_what_it_is(strategy, label):
    assert strategy_label(Choice(strategy)) == label


def test_strategies_that_would_share_a_label_keep_their_words():
    one, other = Choice("plan:file=a/plans/plan.json"), Choice("plan:file=b/plans/plan.json")

    assert strategy_labels([one, other, Choice("none")]) == [str(one), str(other), "none"]
    assert strategy_labels([Choice("all"), Choice("plan:file=a/plans/all.json")]) == [
        "all",
        "plan:file=a/plans/all.json",
    ]


def test_the_folder_of_plans_stands_once():
    chosen = [Choice("none"), Choice(f"plan:file={RUN}/plan.json"), Choice(f"plan:file={RUN}/uniform-4.json")]

    assert files_of_labels(chosen) == [f"plans of plan, uniform(4): {RUN}"]
    assert files_of_labels(chosen[:1]) == []
