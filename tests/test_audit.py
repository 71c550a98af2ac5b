"""The audit fails for a finding, and says plainly where it could ask nobody; the lock pins what is asked about."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from tests.audit import LOCK, judged

ROOT = Path(__file__).parents[1]


def answer(*flaws: str) -> str:
    return json.dumps({"dependencies": [{"name": "one", "version": "1", "vulns": [{"id": flaw} for flaw in flaws]}]})


@pytest.mark.slow
def test_packages_without_a_known_flaw_pass():
    assert judged(answer(), "") == (0, "1 packages audited, 0 known vulnerabilities")


def test_a_known_flaw_fails_and_is_named():
    code, told = judged(answer("PYSEC-1"), "Found 1 known vulnerability in 1 package")

    assert code == 1
    assert told.splitlines() == ["one 1: PYSEC-1", "1 packages audited, 1 known vulnerabilities"]


def test_a_service_that_cannot_be_reached_passes_and_says_so():
    code, told = judged("", "requests.exceptions.ConnectionError: Max retries exceeded with url: /v1/query")

    assert code == 0
    assert told.startswith("NOT AUDITED: the advisory service cannot be reached")


@pytest.mark.parametrize(("out", "err"), [("", "No module named pip_audit"), ("{}", ""), ('{"dependencies": []}', "")])
def test_an_audit_that_did_not_happen_fails(out, err):
    assert judged(out, err)[0] == 1


def test_the_lock_pins_everything_that_is_asked_for_by_name():
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *(one for extra in ("test", "docs", "dev") for one in extras[extra])]
    names = {re.match(r"[\w-]+", one)[0].lower() for one in asked} - {"gcprof"}

    assert all(re.fullmatch(r"[\w.-]+==\d[\w.!+-]*", line) for line in lines)
    assert names - {re.sub(r"[_.]", "-", line.partition("==")[0]).lower() for line in lines} == set()


def test_ci_installs_by_the_lock():
    assert "requirements/ci.txt" in (ROOT / ".ci" / "run").read_text()
