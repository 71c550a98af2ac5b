"""Programs that were tried for what they trip over, each run unchanged by `gcprof rehearse`: how each ended.

They are those of tests/scripts/traps. A row says whether its program ran to its end, and if not, the reason and the
line that gcprof gave; and whether a size was assumed, because it depends on values that are not computed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec

from profiler.core.units import bytes_text
from tests.scripts import runs
from tests.scripts.runs import Run, Script
from tests.scripts.traps import traps
from tests.scripts.traps.traps import LIMIT_SECONDS

MOST_LETTERS = 200  # of a reason
HEADING = "## Programs with traps"
HEAD = """{heading}

Programs in the usual idiom of their libraries, which trip over what a GPU without arithmetic lacks: values that decide
sizes, ranks that talk, libraries with CUDA code of their own. Each is run unchanged, once, by
`gcprof rehearse --device DEVICE --limit {limit} -- COMMAND`; they are those of `tests/scripts/traps` and
`tests/scripts`. Peak and reserved are those of the process that reserves most; where a size was assumed they hold for
the assumed values; shortages are those of memory that the program caught. {num_ran} of {num} ran to their end.

Made by `python -m benchmarks.scripts --traps` with gcprof {version} and torch {torch}, on {cores} cores that other work
shared. Packages: {packages}.

| program | command | device | ran to its end | peak | reserved | processes | assumed | shortages | seconds |
|---|---|---|---|--:|--:|--:|---|--:|--:|
"""


class TrapRow(msgspec.Struct, frozen=True, kw_only=True):
    """A program, watched."""

    script: Script
    watched: Run
    packages: dict[str, str]  # versions of those that it needs

    @property
    def processes(self) -> list[dict[str, Any]]:
        variants = self.watched.document.get("variants", ())
        return [process for variant in variants for process in variant["processes"]]

    @property
    def has_run(self) -> bool:
        outcomes = [variant["outcome"] for variant in self.watched.document.get("variants", ())]
        return self.watched.exit_code == 0 and outcomes == ["ok"] and bool(self.processes)

    @property
    def reason(self) -> str:
        """Why it did not end, in gcprof's words; in the script's own where gcprof has none."""
        dead = sorted((process for process in self.processes if process["died"]), key=lambda process: process["died"])
        if dead and dead[0]["detail"]:
            return str(dead[0]["detail"])
        stuck = [variant["detail"] for variant in self.watched.document.get("variants", ()) if variant["detail"]]
        last = [line for line in self.watched.said.splitlines() if line.strip()][-1:]
        return " ".join(stuck[:1] or last) or f"it ended with {self.watched.exit_code}"

    @property
    def is_assumed(self) -> bool:
        """Whether the size of something came from assumed values."""
        return any(value["is_size"] for process in self.processes for value in process.get("assumed", ()))

    def text(self, command: str) -> str:
        """Return the row of the table."""
        most = max(self.watched.figures, key=lambda figures: figures.reserved_bytes, default=None)
        script, reason = self.script, self.reason.replace("|", "\\|").replace("\n", " ")
        if len(reason) > MOST_LETTERS:
            reason = f"{reason[: MOST_LETTERS // 2]} ... {reason[-MOST_LETTERS // 2 :]}"  # the line is at its end
        cells = (
            script.name,
            f"`{command}`",
            script.device if script.num_gpus == 1 else f"{script.device}:{script.num_gpus}",
            "yes" if self.has_run else f"**no**: {reason}",
            bytes_text(most.peak_bytes) if most else "",
            bytes_text(most.reserved_bytes) if most else "",
            str(len(self.processes)),
            "yes" if self.is_assumed else "no",
            str(sum(len(process["shortages"]) for process in self.processes) or ""),
            f"{self.watched.seconds:.0f}",
        )
        return f"| {' | '.join(cells)} |\n"


def run(script: Script) -> TrapRow:
    """Run a program in a folder of its own."""
    from importlib.metadata import packages_distributions, version

    with tempfile.TemporaryDirectory() as name:
        here = traps.copied(Path(name))
        limit = ("--limit", str(LIMIT_SECONDS))
        watched = runs.rehearsed(script.words, *limit, cwd=here, num_gpus=script.num_gpus, device=script.device)
    names = packages_distributions()
    found = {package: version(names[package][0]) for package in script.needs if package in names}
    return TrapRow(script=script, watched=watched, packages=found)
