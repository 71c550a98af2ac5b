"""`gcprof stages`: a table, a file that `gcprof plan` reads, and what to do next."""

from __future__ import annotations

import pytest

from profiler.cli import answer
from tests.program import next_words

SMALL = "transformer:layers=3,width=32,heads=2,sequence=32,vocabulary=64"
WORDS = (SMALL, "--batch-size", "2", "--device")


@pytest.mark.slow
def test_a_table_has_a_line_for_every_stage(here, shared, capsys):
    assert answer(["stages", *WORDS, "fake:t4"]) == 0

    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == f"{SMALL}, batch 2, sgd, fp32, fake:t4: predicted, not measured"
    assert [line.split("  ")[0] for line in lines[5:]] == [
        "1 before blocks.0", "2 blocks.0", "3 blocks.1", "4 blocks.2", "5 after blocks.2",
    ]  # fmt: skip
    assert lines[5].endswith("always kept")
    assert next_words(said.err) == ["plan", *WORDS[:3], "--device", "fake:t4", "--budget", "60%"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["mlp,mnist-cnn"], "only one model can be planned at once"),
        (["mlp", "--device", "fake:cuda"], "the speed of 'fake:cuda' is not known"),
    ],
)
def test_what_has_no_stages_is_refused(here, shared, capsys, words, complaint):
    assert answer(["stages", *words]) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert complaint in said.err
