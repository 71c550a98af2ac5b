"""No fault is without its test, and no test of a fault without its twin."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.rows import FAULTS

NAMES = [
    match
    for path in sorted(Path(__file__).parent.glob("test_*.py"))
    for match in re.findall(r"^def test_(fault|twin)_(\d+)_", path.read_text(), re.MULTILINE)
]


@pytest.mark.parametrize("kind", ["fault", "twin"])
def test_every_fault_has_a_test_and_a_twin(kind):
    found = {int(number) for what, number in NAMES if what == kind}

    assert found == set(FAULTS)
