"""What makes a caller's step fit a memory: every lever, each way rehearsed in another process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from profiler.core import gpu_specs, plan_file
from profiler.core.case import Calibration, Case, Choice, Trial
from profiler.core.devices import parse
from profiler.core.errors import UserError
from profiler.core.gpu_specs import CONTEXT_BYTES
from profiler.core.plan_file import PlanFile
from profiler.core.record import Record
from profiler.core.units import parse_memory
from profiler.engines import Engine
from profiler.request.spec import Request
from profiler.views.export import markdown as languages
from profiler.views.tables.columns import OWN_OPTIMIZER
from profiler.views.tables.grid import Table, text
from profiler.workflows import SILENT
from profiler.workflows.fit import FitRequest, Fitted, Room, searched
from profiler.workflows.in_process.answering import ESTIMATED, Rehearsed, Source, named, rehearsed
from profiler.workflows.in_process.arguments import Model, Optimizer
from profiler.workflows.plan_comparison import file_of
from profiler.workflows.stages import roomy

NO_DEVICE = 3  # the exit code if nothing can be rehearsed


def fit(
    model: Model,
    batch: Any = None,
    memory: str | int | None = None,
    *,
    loss: Callable[..., Any] | None = None,
    optimizer: Optimizer = None,
    device: str = "cuda",
    precision: str = "fp32",
    blocks: str | None = None,
    seed: int = 0,
    context: int = CONTEXT_BYTES,
    allow: str | None = None,
) -> Fit:
    """Find the fastest way to make a training step fit a memory, with every lever; each way is rehearsed.

    `memory` is "12GiB", a number of bytes, or "60%" of the device's memory, which is the default; `context` are the
    bytes of it that CUDA itself takes. `allow` names levers that change what is trained: "8bit,bf16-state". All else is
    as for `explain`. The result prints as the command's table; `label` is the way to take, `plan` its plan, which goes
    to `apply`, and `code` what to paste for it and its levers. Nothing is measured.

    Raises UserError for what cannot be asked for, and where no step can be rehearsed.

    Example::

        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(16)))
        batch = torch.randn(65536, 256), torch.zeros(65536, 256)
        gcprof.fit(model, batch, "1GiB", loss=nn.functional.mse_loss, optimizer="adamw", device="t4", context=0)
    """
    request = FitRequest(words=Request(), limit=1.0, allow=tuple(allow.split(",")) if allow else (), emit="python")
    request.check()

    def ask(source: Source, case: Case) -> Fit:
        assert isinstance(source, Rehearsed)
        step = _Step(roomy(case), source.engine)
        asked = parse_memory(memory, flag="--memory") if isinstance(memory, str) else 1.0 if memory is None else memory
        limit = asked if isinstance(asked, int) else int(asked * gpu_specs.find(parse(case.device).name).memory_bytes)
        with TemporaryDirectory(prefix="gcprof-") as folder:
            (Path(folder) / plan_file.FOLDER).mkdir()
            room = Room(limit, context, "assumed" if context == CONTEXT_BYTES else "as asked")
            found = searched(step, request, room, partial(file_of, Path(folder)), step.run, SILENT)
            table = found.table
        title = table.title.replace(str(case.model), str(named(case, model).model))
        gone = [folder]  # its files; and it is no news that a live model has its own optimizer
        if not isinstance(optimizer, str | None):
            title = title.replace(OWN_OPTIMIZER, type(optimizer).__name__)
            gone.append("GCP009")
        below = tuple(line for line in table.below if not any(word in line for word in gone))
        return Fit(fitted=found, table=msgspec.structs.replace(table, title=title, below=below))

    words: dict[str, Any] = {"device": device, "precision": precision, "blocks": blocks, "seed": seed}
    made, why = rehearsed(ask, model, batch, loss, optimizer, **words)
    if made is None:
        because = f": {why.removeprefix(ESTIMATED)}" if why else ""
        hint = None if why else 'name a GPU that need not be here: device="t4"'
        message = f"fit rehearses every way, which is not possible here{because}"
        raise UserError(message, hint=hint, exit_code=NO_DEVICE)
    return made


class _Step:
    """A step of the caller's model, and the engine that rehearses it."""

    def __init__(self, case: Case, engine: Engine) -> None:
        self.case, self.engine = case, engine

    def calibration(self) -> Calibration | None:
        return None

    def run(self, trials: tuple[Trial, ...], plans: dict[Path, PlanFile]) -> tuple[int, tuple[Record, ...]]:
        for path, plan in plans.items():
            plan_file.write(plan, path)
        return 0, tuple(self.engine.run(trials))


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The ways that were rehearsed, and the one to take."""

    fitted: Fitted
    table: Table

    @property
    def label(self) -> Choice | None:
        """The strategy, `plan` if it is one, and the levers of the way to take; None if nothing fits."""
        chosen = self.fitted.chosen
        if chosen is None or self.plan is None:
            return chosen.case.label if chosen else None
        return msgspec.structs.replace(chosen.case, strategy=Choice("plan")).label

    @property
    def plan(self) -> PlanFile | None:
        """Its plan, if it has one."""
        return self.fitted.plan

    @property
    def code(self) -> str | None:
        """What to paste for it, if the step does not fit as it is."""
        return self.fitted.code

    def __repr__(self) -> str:
        return text([self.table]).plain

    def _repr_html_(self) -> str:
        return languages.html([self.table])

    def _repr_markdown_(self) -> str:
        return languages.markdown([self.table])
