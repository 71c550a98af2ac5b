"""The table of engines: where trials run. An engine only decides where a trial, one case in one round, is run.

An engine is a context manager with `survey()`, which returns the devices, `ask(entry, text)`, which calls a function
in another process, and `run(plan, done)`, which yields one record for each trial that is owed, in any order, however
the trial ends; `local.in_waves` runs first what other trials depend on. Options follow its name: `ray:address=auto`.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol, TypeVar

from profiler.core import catalogue, gpu_specs
from profiler.core.case import Case, Choice, Trial, decode, encode
from profiler.core.errors import UserError
from profiler.core.record import Environment, Record

TABLE = {
    "local": "profiler.engines.local:connect",
    "trainer": "profiler.engines.local:connect_trainer",
    "slurm": "profiler.engines.slurm:connect",
    "ray": "profiler.engines.ray_cluster:connect",
}
WORKER = "profiler.engines.worker"  # the module of the functions that run in a child
NO_RESULT = "ended without a result"
HERE = ("local", "trainer")  # their devices are those of this machine
STAGE_SECONDS: ContextVar[float] = ContextVar("STAGE_SECONDS", default=600.0)  # `--stage-limit` of this command
T = TypeVar("T")
FAR = ("ray",)  # they run trials on other machines: they get the plan in advance, and have kinds of GPU


class EngineChoice(Choice):
    """An engine with its options: the name ends at the first colon, as options such as an address may contain colons.

    `ray://host:10001` is an address that begins with the engine's name.
    """

    __slots__ = ()

    def _halves(self) -> tuple[str, str]:
        name, _, rest = self.partition(":")
        return name, f"address={self}" if rest.startswith("//") else rest


def connect(
    text: str = "local", *, stage_seconds: float | None = None, plan: Sequence[Trial] = (), measures: bool = True
) -> Engine:
    """Return the engine of that name, with its options, as a context manager.

    A stage of its work may take `stage_seconds`; None: STAGE_SECONDS. `plan` is what it will be asked to run, as far as
    known. If nothing of it is measured, or `measures` is false, an engine on this machine starts sooner. Raises
    UserError if there is no such engine, or if it cannot run the plan.
    """
    make, options = catalogue.load(EngineChoice(catalogue.resolve(EngineChoice(text), TABLE, what="engine")), TABLE)
    name = EngineChoice(text).name
    if name not in FAR and any(gpu_specs.parse(trial.case.device).kind for trial in plan):
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
    engine: Engine = make(**more, **options)
    engine.stage_seconds = stage_seconds or STAGE_SECONDS.get()
    return engine


class Engine(Protocol):
    stage_seconds: float  # the limit of each stage of its work
    logs: Path | None  # where the output of trials goes
    at_work: Callable[[str], None]  # called with what runs now, if the engine knows it
    devices: tuple[str, ...]  # UUIDs of the CUDA devices on which cases on "cuda" run in parallel, one trial on each

    def __enter__(self) -> Engine: ...
    def __exit__(self, *error: object) -> None: ...
    def survey(self) -> dict[str, Environment]:
        """Return every device that can be measured, by name; the CPU first."""

    def ask(self, entry: str, text: str, *, failing: str, rehearses: bool = False) -> dict[str, Any]:
        """Call a function ("module:function") with a text where torch, or the hollow device, is; return its answer."""

    def run(self, plan: Iterable[Trial], done: Iterable[Record] = ()) -> Iterator[Record]:
        """Yield one record for each trial that `done` does not settle. Closing the iterator ends running trials."""


def answer(
    engine: Engine, function: str, given: Case | Trial, kind: type[T], *, failing: str, of: str = "", hint: str = ""
) -> T:
    """Return what a function of the worker answers on a case or a trial, as `kind`.

    Raises UserError, which begins with `of`, if the worker refused (exit code 2, with the hint) or failed (1).
    """
    rehearses = (given.case if isinstance(given, Trial) else given).is_rehearsed
    sent = engine.ask(f"{WORKER}:{function}", encode(given).decode(), failing=failing, rehearses=rehearses)
    if "answer" in sent:
        value = sent["answer"]  # of this process it is what it is, of another plain JSON
        return value if isinstance(value, kind) else decode(json.dumps(value), kind)
    ((outcome, words),) = sent.items()
    message = f"{of}: {words}" if of else words
    is_refused = outcome == "refused"
    raise UserError(message, hint=(hint or None) if is_refused else None, exit_code=2 if is_refused else 1)


def killer(status: int) -> str:
    """Return the signal in the status of a killed process, by its name, and the likely cause."""
    number = -status
    name = {known.value: known.name for known in signal.Signals}.get(number, f"signal {number}")
    return name + (": possibly out of host memory" if number == signal.SIGKILL else "")
