"""Known vulnerabilities of what CI installs: `just audit`. Ends with 1 for a finding, with 0 where nobody answers.

Asks osv.dev about every line of requirements/ci.txt, through pip-audit.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LOCK = Path(__file__).parents[1] / "requirements" / "ci.txt"
WORDS = ("--no-deps", "--disable-pip", "--vulnerability-service", "osv", "--format", "json", "--timeout", "15")
UNREACHABLE = ("ConnectionError", "ConnectTimeout", "ReadTimeout", "Max retries exceeded", "Name or service not known")


def judged() -> tuple[int, str]:
    """What pip-audit's answer comes to: the exit code, and a sentence."""
    words = [sys.executable, "-m", "pip_audit", "-r", str(LOCK), *WORDS, "--progress-spinner", "off"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        is_away = any(word in done.stderr for word in UNREACHABLE)
        told = "NOT AUDITED: the advisory service cannot be reached" if is_away else "the audit did not work"
        return int(not is_away), f"{told}: {done.stderr.strip()[-200:]}"
    found = [f"{one['name']} {one['version']}: {flaw['id']}" for one in packages for flaw in one.get("vulns", ())]
    skipped = [f"{one['name']} was not looked up: {one['skip_reason']}" for one in packages if "skip_reason" in one]
    end = f"{len(packages) - len(skipped)} packages audited, {len(found)} known vulnerabilities"
    return int(bool(found) or not packages), "\n".join([*found, *skipped, end])


if __name__ == "__main__":
    code, told = judged()
    print(told)
    sys.exit(code)
