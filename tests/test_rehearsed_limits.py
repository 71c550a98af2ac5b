"""What a rehearsed device does not have is told as such, and not as the user's mistake."""

from pathlib import Path

import pytest

from profiler.runs import store
from tests.program import gcprof

pytestmark = pytest.mark.slow

USERS = Path(__file__).parent / "user_models"
FILE = USERS / "hollow_limits.py"
ISIN = next(number for number, line in enumerate(FILE.read_text().splitlines(), start=1) if "isin(numbers" in line)
OUTCOMES = {  # of each model: outcome, detail, and the code and text of its note
    f"{USERS}/architectures.py:recurrent": ("ok", "", "GCP018: recurrent networks ran by PyTorch's own kernels"),
    f"{FILE}:make:kind=qr": ("ok", "", "GCP018: decompositions of matrices ran on the CPU"),
    f"{FILE}:make:kind=isin": ("failed", "", f"which are zeros or leftovers here: isin (hollow_limits.py:{ISIN})"),
    f"{USERS}/broken.py:wrong_shape": ("failed", "mat1 and mat2 shapes cannot be multiplied", None),
    f"{FILE}:make:kind=elsewhere": ("failed", "to be on the same device", None),
}  # fmt: skip


def test_what_the_device_lacks_is_done_otherwise_and_said_and_a_mistake_of_the_user_is_no_limit(hollow, here, subtests):
    gcprof("rehearse", ",".join(OUTCOMES), "--strategies", "none", "--cudnn-workspace", "1MiB", "-o", "run", cwd=here)

    records = store.load(here / "run").records
    assert [str(record.case.model) for record in records] == list(OUTCOMES)
    for record in records:
        outcome, detail, note = OUTCOMES[str(record.case.model)]
        with subtests.test(str(record.case.model)):
            assert record.outcome == outcome
            assert detail in (record.detail or "")
            notes = [f"{note.code}: {note.text}" for note in record.notes if note.code in ("GCP018", "GCP041")]
            assert [note in text for text in notes] == ([True] if note else [])
            assert outcome != "ok" or record.readings.peak_bytes > record.readings.saved_bytes > 0
