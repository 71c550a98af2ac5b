"""What a rehearsed device does not have is told as such, and not as the user's mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.core.record import Record
from profiler.runs import store
from tests.program import gcprof

USER_MODELS = Path(__file__).parent / "user_models"
FILE = USER_MODELS / "hollow_limits.py"
MODELS = {"lstm": f"{USER_MODELS / 'lstm.py'}:char_rnn", "qr": f"{FILE}:qr"}


@pytest.fixture(scope="module")
def rehearsed(hollow, tmp_path_factory) -> dict[str, Record]:
    """The record of each model."""
    here = tmp_path_factory.mktemp("limits")
    gcprof("rehearse", ",".join(MODELS.values()), "--strategies", "none", "-o", "run", cwd=here)
    records = {str(record.case.model): record for record in store.load(here / "run").records}
    return {name: records[word] for name, word in MODELS.items()}


@pytest.mark.parametrize(
    ("model", "lacking"),
    [("lstm", "no recurrent networks and no CTC loss of cuDNN (rnn.py:"), ("qr", "no linear algebra of cuSOLVER (")],
)
def test_what_needs_a_library_that_is_not_there_is_skipped_and_says_what_to_do(rehearsed, model, lacking):
    record = rehearsed[model]

    assert record.outcome == "skipped"
    assert record.detail.startswith(f"the hollow device has {lacking}")
    assert record.detail.endswith("; gcprof predict needs none")


def test_explain_says_the_same(hollow, here):
    done = gcprof("explain", MODELS["lstm"], "--device", "rehearse:h100", cwd=here)

    assert done.returncode == 2
    assert "the hollow device has no recurrent networks and no CTC loss of cuDNN (rnn.py:" in done.stderr
