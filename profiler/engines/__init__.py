"""The table of engines: where trials run. An engine only decides where a trial, one case in one round, is run.

An engine is a context manager with `survey()`, the devices there are, `ask(entry, text)`, what a function tells of a
text, and `run(plan, done)`, which yields one record for each trial that is owed, in any order, whatever becomes of it;
`order.in_waves` keeps to what must be known first. What it is connected with are options: `ray:address=auto`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from profiler.core import catalogue, gpu_kinds
from profiler.core.case import Choice, Trial, decode
from profiler.core.errors import UserError
from profiler.core.record import Environment, Record

TABLE = {
    "local": "profiler.engines.local:connect",
    "trainer": "profiler.engines.local:connect_trainer",
    "slurm": "profiler.engines.slurm:connect",
    "ray": "profiler.engines.ray_cluster:connect",
}
WORKER = "profiler.engines.worker"  # the modules of the functions that `ask` and a trial name: what measures,
TRACING = "profiler.engines.tracing"  # what only traces,
DEVICES = "profiler.engines.device_survey"  # and what tells of devices
HERE = ("local", "trainer")  # their devices are those of this machine
FAR = ("ray",)  # they run trials on other machines: they are told what will be asked, and have kinds of GPU


class EngineChoice(Choice):
    """An engine with its options: no name has a colon, and an option may have several, as an address does.

    `ray://host:10001` is an address that begins with the engine's name.
    """

    __slots__ = ()

    def _halves(self) -> tuple[str, str]:
        name, _, rest = self.partition(":")
        return name, f"address={self}" if rest.startswith("//") else rest


def connect(
    text: str = "local",
    *,
    stage_seconds: float = 600.0,
    logs: Path | None = None,
    plan: Sequence[Trial] = (),
    measures: bool = True,
) -> Engine:
    """The engine of that name, with its options; to be entered.

    `plan` is what will be asked of it, as far as that is known; where nothing of it is measured, or `measures` says so,
    an engine that is here starts sooner. Raises UserError where there is no such engine, or it has no kinds of GPU.
    """
    make, options = catalogue.load(EngineChoice(catalogue.resolve(EngineChoice(text), TABLE, what="engine")), TABLE)
    name = EngineChoice(text).name
    if name not in FAR and any(gpu_kinds.of(trial.case.device) for trial in plan):
        hint = f"--engine {' or '.join(FAR)} sends trials to kinds of GPU; here --device takes cuda:N"
        raise UserError(f"--gpus has no effect with --engine {name}", hint=hint)
    if name == "trainer" and any(trial.case.ranks for trial in plan):
        raise UserError("--ranks has no effect with --engine trainer", hint="the Trainer starts its own; leave it out")
    rehearses = any(trial.case.is_rehearsed for trial in plan)
    if rehearses and name not in HERE:
        raise UserError(f"--engine {name} does not rehearse", hint="a rehearsal needs no GPU: leave --engine out")
    measures = measures and not (plan and all(trial.case.is_predicted for trial in plan))
    here = {"rehearses": rehearses, "measures": measures}
    more: dict[str, Any] = {"plan": tuple(plan)} if name in FAR else here if name in HERE else {}
    engine: Engine = make(stage_seconds=stage_seconds, logs=logs, **more, **options)
    return engine


class Engine(Protocol):
    logs: Path | None  # where the output of trials goes
    at_work: Callable[[str], None]  # is told what runs now, where the engine knows it
    devices: tuple[str, ...]  # UUIDs of CUDA devices that the cases on "cuda" run on, all at once, one trial on each

    def __enter__(self) -> Engine: ...
    def __exit__(self, *error: object) -> None: ...
    def survey(self) -> dict[str, Environment]:
        """Returns every device that can be measured, by name; the CPU first."""

    def ask(self, entry: str, text: str, *, failing: str) -> dict[str, Any]:
        """Returns what a function ("module:function") answers to a text, on a machine that has torch."""

    def run(self, plan: Iterable[Trial], done: Iterable[Record] = ()) -> Iterator[Record]:
        """One record for each trial that `done` does not settle. Closing the iterator ends what is at work."""


def read_answer(answer: Mapping[str, Any], key: str, kind: type[Any], *, of: str = "", hint: str | None = None) -> Any:
    """Returns what an answer of the worker has under the key, as `kind`.

    Raises UserError for what was refused (exit code 2, with the hint) or failed (1), which begins with `of`.
    """
    if key in answer:
        return decode(json.dumps(answer[key]), kind)
    is_refused = "refused" in answer
    words = answer["refused"] if is_refused else answer.get("failed", "what it sent is no answer")
    message = f"{of}: {words}" if of else words
    raise UserError(message, hint=hint if is_refused else None, exit_code=2 if is_refused else 1)
